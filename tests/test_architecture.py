"""The house of the design, floor by floor: who may import what, how long a module may be, what lies at the top.

The tables are the design; a new module that fits nowhere in them fails here until somebody says where it belongs.
"""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("storage", "kafkafs")
    for path in (ROOT / package).rglob("*.py")
)

# A floor, and the floors below it that it may import beside itself. A module stands on the floor with the longest name
# that fits; a package's own row ("storage", "kafkafs") is for its __init__ alone.
SHARED = ("storage.errors", "storage.types", "storage.clock", "storage.progress")
FORMAT = (*SHARED, "storage.format", "storage.config")
LOG = (*FORMAT, "storage.files", "storage.log")
STORAGE = ("storage", *LOG, "storage.client", "storage.upkeep")
NAMES = ("kafkafs.tree.paths", "kafkafs.selection.range_names", "kafkafs.formats", "storage.client.counting", "kafkafs.selection.select")
WRITING = ("kafkafs.writing.line_writer", "kafkafs.writing.destinations", "kafkafs.writing.line_parsers", "kafkafs.writing.resent_lines")
VIEWS = (*NAMES, "kafkafs.view_index", *WRITING, "kafkafs.views.block_cache", "kafkafs.views", "kafkafs.mounting.status")
MOUNTING = ("kafkafs.mounting.errnos", "kafkafs.mounting.operations", "kafkafs.mounting.mount_options", "kafkafs.mounting.mountpoint", "kafkafs.mounting.daemon")
MOUNT = (*VIEWS, "kafkafs.tree.tree", *MOUNTING, "kafkafs.mounting.allocator", "kafkafs.mounting.mount")
FLOORS: dict[str, tuple[str, ...]] = {
    "storage.errors": (),
    "storage.types": (),
    "storage.clock": (),
    "storage.progress": (),
    "storage.format": ("storage.errors", "storage.types"),
    "storage.config": ("storage.errors", "storage.types", "storage.format"),
    "storage.files": FORMAT,
    "storage.log": (*FORMAT, "storage.files"),
    "storage.client": LOG,
    "storage.upkeep": LOG,
    "storage": STORAGE[1:],
    "kafkafs.selection.range_names": ("storage.errors", "storage.types"),
    "kafkafs.tree.paths": ("storage.errors", "storage.types", "kafkafs.selection.range_names"),
    "kafkafs.formats": ("storage.errors", "storage.types", "storage.format", "kafkafs.tree.paths", "kafkafs.selection.range_names"),
    "kafkafs.writing.resent_lines": FORMAT,
    "kafkafs.writing.line_parsers": (*FORMAT, "kafkafs.formats"),
    "kafkafs.writing.destinations": (*STORAGE, "kafkafs.writing.line_parsers", "kafkafs.writing.resent_lines"),
    "kafkafs.writing.line_writer": (*STORAGE, "kafkafs.writing.line_parsers", "kafkafs.writing.destinations"),
    "kafkafs.views.block_cache": (*STORAGE, *NAMES, "kafkafs.writing.line_writer"),
    "storage.client.counting": LOG,
    "kafkafs.selection.select": (*LOG, "kafkafs.selection.range_names", "storage.client.counting"),
    "kafkafs.view_index": (*STORAGE, *NAMES, "kafkafs.views.block_cache"),
    "kafkafs.views": (*STORAGE, *NAMES, *WRITING, "kafkafs.views.block_cache", "kafkafs.view_index"),
    "kafkafs.mounting.status": (*STORAGE, *NAMES, "kafkafs.view_index", "kafkafs.views.block_cache"),
    "kafkafs.tree.tree": (*STORAGE, *VIEWS),
    "kafkafs.selection.record_filters": FORMAT,
    "kafkafs.views.unmounted": (*STORAGE, *VIEWS, "kafkafs.selection.record_filters"),
    "kafkafs.mounting.errnos": ("storage.errors", "kafkafs.tree.paths"),
    "kafkafs.mounting.operations": (*STORAGE, *VIEWS, "kafkafs.tree.tree", "kafkafs.mounting.errnos"),
    "kafkafs.mounting.mount_options": ("storage.types",),
    "kafkafs.mounting.mountpoint": (),
    "kafkafs.mounting.recovery_progress": ("storage.progress",),
    "kafkafs.mounting.allocator": (),
    "kafkafs.mounting.daemon": ("storage.progress", "kafkafs.mounting.mountpoint"),
    "kafkafs.mounting.mount": (*STORAGE, *VIEWS, "kafkafs.tree.tree", *MOUNTING, "kafkafs.mounting.allocator", "kafkafs.mounting.recovery_progress"),
    "kafkafs.spark": (*STORAGE, *NAMES, "kafkafs.view_index"),
    "kafkafs.cli": (*STORAGE, *MOUNT, "kafkafs.views.unmounted", "kafkafs.selection.record_filters", "kafkafs.spark", "kafkafs"),
    "kafkafs.__main__": ("kafkafs.cli",),
    "kafkafs": (),
}

# Who else may be imported, by package of somebody else's or of the standard library: only by these modules.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "fuse": ("kafkafs.mounting.operations",),
    "pyspark": ("kafkafs.spark*",),
    "pyarrow": ("kafkafs.spark*",),
    "matplotlib": ("kafkafs.spark.jobs.stats_plot", "kafkafs.cli.histogram_plot"),
    "rich": ("kafkafs.cli*",),
    "click": ("kafkafs.cli*",),
    "crcmod": ("storage.format.checksum",),
    "crc32c": ("storage.format.checksum",),
    "cramjam": ("storage.format.compression",),
    "psutil": (
        "storage.files.dir_lock", "storage.upkeep.retention", "kafkafs.mounting.status", "kafkafs.mounting.mountpoint", "kafkafs.cli*"
    ),
    "mmap": (),  # another process may truncate the file: SIGBUS kills the mount
}

# Bytes, pure: no I/O, no clock, no logging. The grammar of paths is as pure.
PURE = ("storage.format*", "storage.errors", "storage.types", "kafkafs.tree.paths", "kafkafs.selection.range_names")
NOT_PURE = {"io", "os", "logging", "time", "datetime", "shutil", "subprocess", "socket", "threading", "tempfile",
            "random", "mmap"}
# calendar arithmetic without a clock
PURE_BUT_FOR = {"kafkafs.tree.paths": {"datetime"}, "kafkafs.selection.range_names": {"datetime"}}

# Nothing else at the top but dot-files.
TOP_LEVEL = {"storage", "kafkafs", "tests", "examples", "pyproject.toml", "README.md"}
MAX_LINES = 500


def source_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module: str) -> Iterator[str]:
    """Absolute names of the modules that `module` imports, wherever in it: `from a import b` gives a.b if a module."""
    path = source_of(module)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


def is_ours(module: str) -> bool:
    return module.split(".")[0] in ("storage", "kafkafs")


def floor_of(module: str) -> str:
    parts = module.split(".")
    while parts and ".".join(parts) not in FLOORS:
        parts.pop()
    floor = ".".join(parts)
    # a package's own row is for its __init__ alone
    return floor if floor == module or "." in floor else ""


def matches(module: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    floor = floor_of(module)
    assert floor, f"{module} has no floor: say in FLOORS where it belongs"
    below = FLOORS[floor]
    up = sorted(
        {
            name
            for name in imports_of(module)
            if is_ours(name) and floor_of(name) not in (floor, *below)
        }
    )
    assert not up, f"{module} (floor {floor}) must not import {', '.join(up)}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_of_others(module: str) -> None:
    wrong = sorted(
        {
            name
            for name in imports_of(module)
            if name.split(".")[0] in ONLY_IN and not matches(module, ONLY_IN[name.split(".")[0]])
        }
    )
    assert not wrong, f"{module} must not import {', '.join(wrong)}"


@pytest.mark.parametrize("module", [name for name in MODULES if matches(name, PURE)])
def test_pure_modules(module: str) -> None:
    allowed = PURE_BUT_FOR.get(module, set())
    wrong = sorted({name.split(".")[0] for name in imports_of(module)} & (NOT_PURE - allowed))
    assert not wrong, f"{module} is pure, but imports {', '.join(wrong)}"


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("kafkafs.cli")])
def test_only_the_cli_prints(module: str) -> None:
    prints = [
        node.lineno
        for node in ast.walk(ast.parse(source_of(module).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, f"{module} prints in lines {prints}"


def test_the_floors_have_no_circle() -> None:
    """The table itself goes down only."""
    graphlib.TopologicalSorter({floor: set(below) for floor, below in FLOORS.items()}).prepare()


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_short(module: str) -> None:
    lines = source_of(module).read_text().count("\n")
    assert lines <= MAX_LINES, f"{module} has {lines} lines: split it"


def test_no_utils() -> None:
    """A module has a noun of the trade for a name."""
    vague = {"util", "utils", "helper", "helpers", "common", "misc", "tools"}
    assert not [module for module in MODULES if vague & set(module.split("."))]


def tracked() -> list[str]:
    """The files that git knows, or where there is no git all that do not look made."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        listed = subprocess.run([git, "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
        return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    files = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    made = re.compile(r"\.(?!ci$).*|build|__pycache__|.*\.egg-info")
    return [str(path) for path in files if not any(made.fullmatch(part) for part in path.parts[:-1])]


def test_the_top_level() -> None:
    top = {name.split("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_no_path_of_a_machine() -> None:
    """No file names the directory it was written in."""
    here = (str(ROOT) + "/", str(ROOT.parent / "shared") + "/")
    named = [
        name
        for name in tracked()
        if (ROOT / name).suffix in (".py", ".md", ".sh", ".toml")
        and any(path in (ROOT / name).read_text() for path in here)
    ]
    assert not named


def test_the_commands_of_the_readme_exist() -> None:
    """Scripts that the README names are there and executable; `kafkafs X` in it is a command."""
    from kafkafs.cli import main

    readme = (ROOT / "README.md").read_text()
    scripts = set(re.findall(r"\b((?:examples|tests)/[\w./-]+\.sh)\b", readme))
    assert {"examples/quickstart.sh", "tests/run.sh"} <= scripts
    for script in scripts:
        assert (ROOT / script).stat().st_mode & 0o111, f"{script} is not executable"
    blocks = "\n".join(re.findall(r"```.*?\n(.*?)```", readme, flags=re.DOTALL))
    named = set(re.findall(r"^(?:\$ )?kafkafs ([a-z]+)", blocks, flags=re.MULTILINE))
    assert named
    assert not named - set(main.commands), f"the README names commands that are not: {named - set(main.commands)}"

"""The packages: which may import which, what is at the top level.

Imports go down the table only, and never in a circle. A new package fails here until the table has it.
"""

import ast
import fnmatch
import graphlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("storage", "kafkafs")
    for path in (ROOT / package).rglob("*.py")
)

# The ground: modules directly in `storage` or `kafkafs`. They import none of our modules.
GROUND = "storage.*"
KAFKAFS_GROUND = "kafkafs.*"
# The ways in: they may import any package, and nobody imports them but `kafkafs.__main__`.
DOORS = ("storage", "kafkafs", "kafkafs.__main__")
# A package, and the packages that it may import in addition to itself and the ground.
PACKAGES = {
    GROUND: (),
    "storage.format": (),
    "storage.config": ("storage.format",),
    "storage.files": ("storage.format",),
    "storage.tier": ("storage.format", "storage.files"),
    "storage.log": ("storage.format", "storage.config", "storage.files", "storage.tier"),
    "storage.append": ("storage.format", "storage.config", "storage.files", "storage.log"),
    "storage.latest": ("storage.format", "storage.log"),
    "storage.recovery": ("storage.format", "storage.config", "storage.files", "storage.log", "storage.append"),
    "storage.staged_writes": ("storage.format", "storage.config", "storage.files", "storage.log", "storage.append"),
    "storage.directory": (
        "storage.config", "storage.files", "storage.log", "storage.append", "storage.recovery",
        "storage.staged_writes",
    ),
    "storage.verify": (
        "storage.format", "storage.files", "storage.tier", "storage.log", "storage.append", "storage.staged_writes",
    ),
    "storage.compaction": (
        "storage.format", "storage.config", "storage.files", "storage.log", "storage.append", "storage.latest",
        "storage.staged_writes", "storage.directory",
    ),
    "storage.coordinators": ("storage.format", "storage.files", "storage.log", "storage.append", "storage.directory"),
    "storage.diagnosis": (
        "storage.format", "storage.config", "storage.files", "storage.log", "storage.recovery", "storage.directory",
        "storage.verify", "storage.upkeep",
    ),
    "storage.upkeep": (
        "storage.config", "storage.files", "storage.log", "storage.append",
        "storage.staged_writes", "storage.directory", "storage.compaction",
    ),
    "storage.backup": (
        "storage.format", "storage.config", "storage.files", "storage.tier", "storage.log", "storage.append",
        "storage.directory", "storage.coordinators",
    ),
    "storage.revival": (
        "storage.format", "storage.config", "storage.files", "storage.tier", "storage.log", "storage.append",
        "storage.recovery", "storage.directory", "storage.coordinators", "storage.upkeep",
    ),
    KAFKAFS_GROUND: (),
    "kafkafs.formats": ("storage.format",),
    "kafkafs.schemas": ("storage.format", "storage.files", "storage.log"),
    "kafkafs.decoding": ("storage.format", "kafkafs.formats", "kafkafs.schemas"),
    "kafkafs.reading": ("storage.format", "storage.files", "storage.log", "storage.latest", "kafkafs.formats"),
    # What Python programs and Spark's source have in common: no pyspark here.
    "kafkafs.arrow": (
        "storage.format", "storage.files", "storage.tier", "storage.log", "storage.latest", "kafkafs.schemas",
        "kafkafs.decoding", "kafkafs.reading",
    ),
    "kafkafs.replay": ("storage.format", "kafkafs.schemas", "kafkafs.decoding"),
    "kafkafs.writing": (
        "storage.format", "storage.config", "storage.files", "storage.append", "storage.directory",
        KAFKAFS_GROUND,
    ),
    "kafkafs.spark": (
        "storage.format", "storage.files", "storage.tier", "storage.log", "storage.append", "storage.staged_writes",
        "storage.directory", KAFKAFS_GROUND, "kafkafs.schemas", "kafkafs.reading", "kafkafs.arrow",
    ),
    "kafkafs.tree": (
        "storage.format", "storage.files", "storage.log", "storage.append", "storage.latest",
        "storage.directory", "storage.coordinators", KAFKAFS_GROUND, "kafkafs.formats", "kafkafs.schemas",
        "kafkafs.decoding", "kafkafs.reading", "kafkafs.writing",
    ),
    "kafkafs.mounting": (
        "storage.config", "storage.files", "storage.tier", "storage.log", "storage.directory", "storage.upkeep",
        KAFKAFS_GROUND, "kafkafs.schemas", "kafkafs.reading", "kafkafs.tree",
    ),
    "kafkafs.cli": (
        "storage.format", "storage.files", "storage.tier", "storage.log", "storage.append", "storage.recovery",
        "storage.staged_writes", "storage.directory", "storage.verify", "storage.compaction",
        "storage.coordinators", "storage.diagnosis", "storage.upkeep", "storage.backup", "storage.revival",
        KAFKAFS_GROUND, "kafkafs.formats", "kafkafs.schemas", "kafkafs.decoding", "kafkafs.reading",
        "kafkafs.arrow", "kafkafs.replay", "kafkafs.writing", "kafkafs.spark", "kafkafs.tree", "kafkafs.mounting",
    ),
}  # fmt: skip

# Other packages, and some of the standard library, that only these modules may import.
ONLY_IN = {
    "fuse": ("kafkafs.mounting.operations",),
    "mfusepy": ("kafkafs.mounting.operations",),
    "pyspark": ("kafkafs.spark*",),
    "pyarrow": ("kafkafs.arrow*", "kafkafs.spark*", "kafkafs.cli.sql"),
    "duckdb": (
        "kafkafs.arrow.database", "kafkafs.arrow.duckdb_connection", "kafkafs.arrow.record_filter",
        "kafkafs.arrow.statements",
    ),
    "confluent_kafka": ("kafkafs.replay.cluster", "kafkafs.replay.replaying"),
    "matplotlib": ("kafkafs.cli.stats_plot",),
    "rich": ("kafkafs.cli*",),
    "click": ("kafkafs.cli*",),
    "google": ("kafkafs.decoding.protobuf", "kafkafs.decoding.proto_any", "kafkafs.decoding.proto_files"),
    "grpc_tools": ("kafkafs.decoding.proto_files",),
    "crcmod": ("storage.format.checksum",),
    "crc32c": ("storage.format.checksum",),
    "cramjam": ("storage.format.compression",),
    "xxhash": ("storage.backup.canonical_records", "storage.format.compression"),
    "fsspec": ("storage.tier.object_places",),
    "psutil": (
        "storage.files.dir_lock", "storage.upkeep.retention", "kafkafs.mounting.status", "kafkafs.mounting.mountpoint",
        "kafkafs.cli*",
    ),
    # Another process may truncate a file: SIGBUS kills the mount. The page cache is asked without touching a byte.
    "mmap": ("storage.files.page_cache",),
}  # fmt: skip

# Bytes, pure: no I/O, no clock, no logging. The grammar of paths is pure too.
PURE = ("storage.format*", "storage.errors", "storage.types", "kafkafs.tree.paths", "kafkafs.reading.range_names")
NOT_PURE = {
    "io", "os", "logging", "time", "datetime", "shutil", "subprocess", "socket", "threading", "tempfile", "random",
    "mmap",
}  # fmt: skip
# calendar arithmetic without a clock; a count of the decoders that have much memory
PURE_BUT_FOR = {
    "kafkafs.tree.paths": {"datetime"},
    "kafkafs.reading.range_names": {"datetime"},
    "storage.format.decoder": {"threading"},
}

# The only names at the top level, except dot-files.
TOP_LEVEL = {"storage", "kafkafs", "tests", "examples", "pyproject.toml", "setup.py", "README.md"}


def source_of(module):
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module):
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


def is_ours(module):
    return module.split(".")[0] in ("storage", "kafkafs")


def package_of(module):
    """The package of a module; "" for the ways in. A package within a package (`kafkafs.spark.jobs`) is part of it."""
    if module in DOORS:
        return ""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 or source_of(module).name == "__init__.py" else f"{parts[0]}.*"


def matches(module, patterns):
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


@pytest.mark.parametrize("module", [name for name in MODULES if name not in DOORS])
def test_imports_go_down(module):
    package = package_of(module)
    assert package in PACKAGES, f"{module} is in no package: say in PACKAGES what {package} stands on"
    below = (package, GROUND, *PACKAGES[package])
    up = sorted({name for name in imports_of(module) if is_ours(name) and package_of(name) not in below})
    assert not up, f"{module} (package {package}) must not import {', '.join(up)}"


def test_the_table_says_no_more_than_is_so():
    """Each package imports every package that it is allowed to import."""
    used = {
        (package_of(module), package_of(name)) for module in MODULES for name in imports_of(module) if is_ours(name)
    }
    assert not [(package, below) for package in PACKAGES for below in PACKAGES[package] if (package, below) not in used]


@pytest.mark.parametrize("module", MODULES)
def test_imports_of_others(module):
    limited = ((name, ONLY_IN.get(name.split(".")[0])) for name in imports_of(module))
    wrong = sorted({name for name, places in limited if places is not None and not matches(module, places)})
    assert not wrong, f"{module} must not import {', '.join(wrong)}"


@pytest.mark.parametrize("module", [name for name in MODULES if matches(name, PURE)])
def test_pure_modules(module):
    allowed = PURE_BUT_FOR.get(module, set())
    wrong = sorted({name.split(".")[0] for name in imports_of(module)} & (NOT_PURE - allowed))
    assert not wrong, f"{module} is pure, but imports {', '.join(wrong)}"


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("kafkafs.cli")])
def test_only_the_cli_prints(module):
    prints = [
        node.lineno
        for node in ast.walk(ast.parse(source_of(module).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, f"{module} prints in lines {prints}"


def test_the_packages_have_no_circle():
    """The table itself has no circle."""
    graphlib.TopologicalSorter({package: set(below) for package, below in PACKAGES.items()}).prepare()


def test_the_modules_have_no_circle():
    """Nor have the modules, including imports for types alone. The `__init__` of a package counts as a module."""
    imports = {module: {name for name in imports_of(module) if name in MODULES} - {module} for module in MODULES}
    graphlib.TopologicalSorter(imports).prepare()


def test_a_name_is_one_module():
    """A basename occurs once in a package, except for commands and Spark's jobs, which are named after what they do."""
    named = {}
    for module in MODULES:
        is_module = source_of(module).name != "__init__.py"
        if is_module and not matches(module, ("kafkafs.cli.*", "kafkafs.spark.jobs.*")):
            package, name = module.split(".")[0], module.rpartition(".")[2]
            named.setdefault((package, name), []).append(module)
    assert not [modules for modules in named.values() if len(modules) > 1]


def test_a_class_name_means_one_thing():
    """A public class has its name alone."""
    places = {}
    for module in MODULES:
        for node in ast.parse(source_of(module).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


def test_imports_for_types_only_come_last():
    """Their block has imports, and no other import follows it."""
    wrong = []
    for name in MODULES:
        statements = ast.parse(source_of(name).read_text()).body
        block = next((node for node in statements if ast.unparse(node).startswith("if TYPE_CHECKING:")), None)
        if block is not None:
            later = [type(node) for node in statements[statements.index(block) + 1 :]]
            if isinstance(block.body[0], ast.Pass) or ast.Import in later or ast.ImportFrom in later:
                wrong.append(name)
    assert not wrong


def test_no_utils():
    """A module is named by a specific noun."""
    vague = {"util", "utils", "helper", "helpers", "common", "misc", "tools"}
    assert not [module for module in MODULES if vague & set(module.split("."))]


def tracked():
    """The files that git tracks; without git, all files that do not look generated."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        # The checkout may belong to another user: root runs the tests of a developer's clone.
        command = [git, "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    files = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    made = re.compile(r"\.(?!ci$).*|build|__pycache__|.*\.egg-info")
    return [str(path) for path in files if not any(made.fullmatch(part) for part in path.parts[:-1])]


def test_the_top_level():
    top = {name.split("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_no_path_of_a_machine():
    """No file contains the path of the directory in which it was written."""
    here = (str(ROOT) + "/", str(ROOT.parent / "shared") + "/")
    named = [
        name
        for name in tracked()
        if (ROOT / name).suffix in (".py", ".md", ".sh", ".toml")
        and any(path in (ROOT / name).read_text() for path in here)
    ]
    assert not named


def test_the_commands_of_the_readme_exist():
    """Scripts that the README names exist and are executable; each `kafkafs X` in it is a command."""
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

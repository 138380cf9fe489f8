"""The documents: every citation names a document and a section that exist, and what they name exists."""

import ast
import io
import re
import tokenize
from pathlib import Path

import click
import pytest

from kafkafs.cli import main
from kafkafs.cli.man_page import commands
from kafkafs.mounting.mount_options import NAMES
from storage.config import TOPIC_KEYS
from tests import command_table

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
TEXT = (TESTS / "README.md").read_text()

DOCUMENTS = ("storage/DESIGN.md", "storage/FORMAT.md", "kafkafs/DESIGN.md", "kafkafs/CONTRACT.md")
# Pages that are not in the repository. In pieces, so that this file does not name them.
OUTSIDE = re.compile("|".join(("kafka-" + "facts", "fuse-" + "facts", r"\bproduct\." + "md", r"\barchitecture\." + "md",
                               r"\.\./" + "shared")))  # fmt: skip
SUFFIXES = (".py", ".md", ".sh", ".toml", ".pxd", ".1")
# A document, and the title of a section after it, in quotes. Lines may end anywhere. A path in quotes is code.
CITATION = re.compile(r'(?<!["\w./-])(?P<document>[\w./-]*\b[A-Z]+\.md)`?\)?(?:,[\s#]+"(?P<section>[^"]+)")?')
SECTION_ONLY = re.compile(r'section[\s#]+"(?P<section>[^"]+)"', re.IGNORECASE)


def files():
    for folder in (ROOT / "storage", ROOT / "kafkafs", TESTS, ROOT / "examples"):
        yield from (path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path.is_file())
    yield from (ROOT / "README.md", ROOT / "pyproject.toml")


def document_at(name, citing):
    """The document that `citing` names: from the root, `tests`, its own folder, or the package it tests or is in."""
    parts = citing.relative_to(ROOT).parts
    package = ROOT / (parts[1] if parts[0] == "tests" else parts[0])
    return next((base / name for base in (ROOT, TESTS, citing.parent, package) if (base / name).is_file()), None)


def headings(document):
    return set(re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE))


def test_citations_name_sections_that_exist():
    """A citation is the path of a document, a comma, and the title of a section in quotes, or the path alone."""
    wrong = []
    for path in files():
        text = path.read_text()
        for found in CITATION.finditer(text):
            document, section = found["document"], found["section"]
            place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
            target = document_at(document, path)
            if target is None:
                wrong.append(f"{place}: there is no {document}")
            elif section is not None and " ".join(section.replace("#", "").split()) not in headings(target):
                wrong.append(f"{place}: {document} has no section {section!r}")
        if path.suffix == ".md":
            own = headings(path)
            wrong += [
                f"{path.relative_to(ROOT)}: there is no section {found['section']!r}"
                for found in SECTION_ONLY.finditer(text)
                if found["section"] not in own
            ]
    assert not wrong, "\n".join(wrong)


def test_no_page_outside_the_repository_is_cited():
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for found in OUTSIDE.finditer(line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("document", [*DOCUMENTS, "kafkafs/ARCHITECTURE.md", "README.md"])
def test_modules_that_documents_name_exist(document):
    """A path in code font is from the root, from the package that the document describes, or an example."""
    text = (ROOT / document).read_text()
    named = set(re.findall(r"`((?:[\w-]+/)*\w+\.py)`", text))
    places = (ROOT, (ROOT / document).parent, ROOT / "examples")
    assert not [name for name in sorted(named) if not any((place / name).exists() for place in places)]


@pytest.mark.parametrize("package", ["storage", "kafkafs"])
def test_every_package_is_in_the_table(package):
    named = re.findall(r"^\| `(\w+)` ", section(str(Path(package, "DESIGN.md")), "Packages"), re.MULTILINE)
    assert {path.parent.name for path in (ROOT / package).glob("*/__init__.py")} == set(named)


def section(document, title):
    return (ROOT / document).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_contract_has_the_commands_as_click_has_them():
    """When it fails: `python -m tests.command_table`."""
    assert (ROOT / "kafkafs" / "CONTRACT.md").read_text() == command_table.contract()


def test_help_is_short():
    """At most 25 lines of 100 columns before the options: purpose, then examples."""
    long = {}
    above = click.Context(main, **main.context_settings)  # click keeps the names of a command's option for help
    for name, command in commands():
        text = command.get_help(click.Context(command, parent=above, terminal_width=100))
        before = text.partition("\nOptions:")[0].partition("\n\n")[2]
        long |= {name: count} if (count := len(before.splitlines())) > 25 else {}
    assert not long


def unnamed(title, names):
    """Those of `names` that a section of the contract lacks."""
    text = section("kafkafs/CONTRACT.md", title)
    return [name for name in names if not re.search(rf"`{re.escape(name)}[`=]", text)]


def test_the_contract_has_every_mount_option_and_configuration_key():
    assert not unnamed("Mount options", NAMES)
    assert not unnamed("Configuration", [name for name in TOPIC_KEYS if not name.startswith("compression.")])


def test_the_contract_has_every_spark_option():
    options = pytest.importorskip("kafkafs.spark.option_values", reason="no pyspark", exc_type=ImportError)
    assert not unnamed("Spark", {*options.SOURCE, *options.SINK} - {"checkpointLocation"})


def test_files_and_folders_exist():
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.sh|\.md|\.toml|/))`", TEXT))
    named |= set(re.findall(r"\btests/[\w./-]*[\w/]", TEXT))
    assert len(named) >= 40
    assert not [name for name in sorted(named) if not (TESTS / name).exists() and not (ROOT / name).exists()]


def test_variables_are_read_and_all_of_them_named():
    sources = [path for suffix in ("py", "sh") for path in TESTS.rglob(f"*.{suffix}") if path != Path(__file__)]
    read = {
        name
        for path in sources
        for name in re.findall(r"(?:environ(?:\.get\(|\[)[\"']|\$\{)(KAFKAFS_\w+)", path.read_text())
    }
    assert read == set(re.findall(r"KAFKAFS_[A-Z_]+", TEXT))


# Names of others in code font: FUSE's, Confluent's, Spark's, DuckDB's, examples.
OF_OTHERS = {
    "__key_schema_id",
    "__value_schema_id",
    "a_b",
    "max_write",
    "spark.python.unix.domain.socket.enabled",
    "value_1",
}


def product():
    """The paths, sources and trees of all modules."""
    for path in [*(ROOT / "storage").rglob("*.py"), *(ROOT / "kafkafs").rglob("*.py")]:
        source = path.read_text()
        yield path, source, ast.parse(source)


def comments(source, tree):
    """All docstrings and comments."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    yield from filter(None, (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


def test_modules_and_names_in_comments_exist():
    """In code font: `module`, `module.name`, `name` or `file.py`. Names with capitals may be Kafka's."""
    modules, names = set(), set()
    for path, _, tree in product():
        modules.add(path.stem)
        for node in ast.walk(tree):
            for attribute in ("id", "attr", "name", "arg", "asname", "module"):
                if isinstance(name := getattr(node, attribute, None), str):
                    names.update(name.split("."))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                names.update(re.findall(r"\w+", node.value))
    wrong = {
        f"{path.relative_to(ROOT)}: {named}"
        for path, source, tree in product()
        for comment in comments(source, tree)
        for named in re.findall(r"`([a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)`", comment)
        for first, *others in [named.removesuffix(".py").split(".")]
        if named not in OF_OTHERS and not {first, *others} <= names | modules
        if not others or first in modules | {"storage", "kafkafs"}
    }
    assert not wrong, "\n".join(sorted(wrong))

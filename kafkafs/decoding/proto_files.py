"""Compiling the text of a Protobuf schema to the protobuf library's descriptors, with grpcio-tools in another process.

A text in a log may crash the compiler, or make it use much time or memory, or print much. The compiler has limits, and
cannot harm this process.

Registries know some files without references, and so does the compiler here: google/protobuf/*.proto, which comes with
grpcio-tools, google/type/*.proto from googleapis-common-protos, and confluent/*.proto, which is below `protos/`. A
reference of the same name is preferred.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
from binascii import a2b_base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from cachetools import LRUCache

from kafkafs.decoding.avro_schema import MAX_TEXT, BadSchema, referred_schema
from kafkafs.decoding.error_texts import shortened
from kafkafs.schemas.schema import DESCRIPTORS, PROTOBUF, Schema

if TYPE_CHECKING:
    from kafkafs.schemas.schema import SchemaLookup

_MAIN: Final = "schema.kafkafs.proto"
# In place of texts: a descriptor set that a person has compiled, in base64, and the name of a message type.
_SET: Final = "descriptors"
_OPTIONS: Final = "confluent/meta.proto"
# The files of google/protobuf whose types occur in messages.
_GOOGLES: Final = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
MOST_FILES: Final = 1000
COMPILER_SECONDS: Final = 60
# Limits of the compiler: its memory, and the bytes of its result and of its messages.
COMPILER_MEMORY_BYTES: Final = 640 << 20
COMPILER_OUTPUT_BYTES: Final = 16 << 20
_SAID_BYTES: Final = 1 << 16
# Limits for one schema and for all schemas of a process, in descriptors (`_weight`), about 1 KiB of memory each.
MOST_DESCRIPTORS: Final = 1 << 17
MOST_IN_PROCESS: Final = 1 << 18
_MOST_KEPT: Final = 256
_PARTS: Final = {
    "FileDescriptorProto": ("message_type", "enum_type", "service", "extension"),
    "DescriptorProto": ("field", "nested_type", "enum_type", "extension", "oneof_decl"),
    "EnumDescriptorProto": ("value",),
    "ServiceDescriptorProto": ("method",),
}
_LOGGED: Final = re.compile(r"WARNING: |[IWEF]\d{4} |\[libprotobuf ")
_INSTALL: Final = "Protobuf needs the packages of an extra: pip install 'kafkafs[schemas]'"


@dataclass(frozen=True, eq=False)
class Compiled:
    """A descriptor pool, the descriptor of the schema's own file in it, and the number of the pool's descriptors. Users
    of the pool keep this object, so that its descriptors are counted."""

    pool: Any
    file: Any
    descriptors: int


def compiled_files(schema: Schema, schemas: SchemaLookup) -> Compiled:
    """Return the compiled schema. Raises BadSchema."""
    if find_spec("google.protobuf") is None or find_spec("grpc_tools") is None:
        raise BadSchema(_INSTALL)
    if schema.schema_type == DESCRIPTORS:
        return _KEPT.compiled(((_SET, schema.text), ("message", schema.message)))
    return _KEPT.compiled(_texts(schema, schemas))


@cache
def files_without_reference() -> Schema:
    """A schema that imports the files that need no reference, to make their types available."""
    names = {f"google/protobuf/{name}.proto" for name in _GOOGLES}
    types = find_spec("google.type")
    for name, folders in (
        ("google/type", [] if types is None else types.submodule_search_locations or []),
        ("confluent/type", [str(Path(__file__).parent / "protos/confluent/type")]),
    ):
        names |= {f"{name}/{path.name}" for folder in folders for path in Path(folder).glob("*.proto")}
    imports = "".join(f'import "{name}";\n' for name in sorted(names))
    return Schema(-1, PROTOBUF, f'syntax = "proto3";\n{imports}')


def longest_name(file: Any) -> int:
    """An upper bound, in bytes, for the length of the names of the file's fields and symbols, imports included."""
    files, waiting, longest = set(), [file], 0
    while waiting:
        file_ = waiting.pop()
        if file_.name not in files:
            files.add(file_.name)
            waiting += file_.dependencies
            longest = max(longest, *map(len, re.findall(rb"[\w.]+", file_.serialized_pb)))
    return longest


def _texts(schema: Schema, schemas: SchemaLookup) -> tuple[tuple[str, str], ...]:
    """(name, text) of the schema and of all files that it refers to. Raises BadSchema."""
    texts = {_MAIN: schema.text}
    waiting = list(schema.references)
    seen = set()
    while waiting:
        reference = waiting.pop()
        if (place := (reference.name, reference.subject, reference.version)) in seen:
            continue
        seen.add(place)
        _check_name(reference.name)
        referred = referred_schema(reference, schemas, PROTOBUF)
        if texts.setdefault(reference.name, referred.text) != referred.text:
            raise BadSchema(f"refers to {reference.name} in two versions")
        waiting += referred.references
        if len(seen) > MOST_FILES or sum(map(len, texts.values())) > MAX_TEXT:
            raise BadSchema(f"it and its references are more than {MOST_FILES} texts or {MAX_TEXT >> 20} MiB")
    if len(schema.text) > MAX_TEXT:
        raise BadSchema(f"its text is longer than {MAX_TEXT >> 20} MiB")
    return tuple(texts.items())


def _check_name(name: str) -> None:
    """Raise BadSchema unless a file of this name is written below the directory of the schema's files."""
    parts = name.split("/")
    wrong = any(part in ("", ".", "..") or len(part.encode(errors="replace")) > 255 for part in parts)
    if wrong or not name.isprintable() or "\\" in name or len(parts) > 50 or name == _MAIN:
        raise BadSchema(f"refers to {name!r}, which is not a valid file name")


class _Kept:
    """The schemas compiled last, by their texts, of which the first is the schema's own. All partitions of a topic
    share it. Thread-safe; the lock also guards the bound of the process."""

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._kept: LRUCache[tuple[tuple[str, str], ...], Compiled] = LRUCache(_MOST_KEPT)
        self._alive: WeakSet[Compiled] = WeakSet()  # those in `_kept`, and those that decoders use

    def compiled(self, texts: tuple[tuple[str, str], ...]) -> Compiled:
        """Return `compiled_files`'s result, kept from earlier calls."""
        with self._lock:
            compiled = self._kept.get(texts)
            if compiled is not None:
                return compiled
        try:
            return self._compile(texts)
        # The library's errors for a bad descriptor depend on its version.
        except Exception as error:
            if isinstance(error, BadSchema):
                raise
            raise BadSchema(f"the protobuf library refuses it: {error}") from None

    def _compile(self, texts: tuple[tuple[str, str], ...]) -> Compiled:
        from google.protobuf import descriptor_pb2, descriptor_pool

        is_set = texts[0][0] == _SET
        encoded = a2b_base64(texts[0][1]) if is_set else _with_options(texts)
        files = descriptor_pb2.FileDescriptorSet.FromString(encoded).file
        if not files:
            raise BadSchema("it has no files")
        descriptors = sum(_weight(file, len(file.package)) for file in files)
        if descriptors > MOST_DESCRIPTORS:
            raise BadSchema(f"it has more than {MOST_DESCRIPTORS} descriptors, as kafkafs counts them")
        with self._lock:
            if (compiled := self._kept.get(texts)) is not None:
                return compiled
            room = MOST_IN_PROCESS - descriptors  # evict others before this schema takes its memory
            while self._kept and (len(self._kept) >= _MOST_KEPT or self._in_use() > room):
                self._kept.popitem()
            if self._in_use() > room:
                raise BadSchema("the Protobuf schemas in use before it are too large together")
            pool = descriptor_pool.DescriptorPool()
            for file in files:
                pool.Add(file)
            main = _file_of(files, texts[1][1]) if is_set else _MAIN
            compiled = self._kept[texts] = Compiled(pool, pool.FindFileByName(main), descriptors)
            self._alive.add(compiled)
            return compiled

    def _in_use(self) -> int:
        return sum(compiled.descriptors for compiled in self._alive)


_KEPT: Final = _Kept()


def _file_of(files: Sequence[Any], message: str) -> str:
    """The name of the last file that declares the message type; of the last file if none does."""
    for file in reversed(files):
        scope = f"{file.package}." if file.package else ""
        if message and message.removeprefix(scope) in _type_names(file.message_type, ""):
            return str(file.name)
    return str(files[-1].name)


def _type_names(types: Iterable[Any], scope: str) -> set[str]:
    """The names of message types and of those within them."""
    names = set()
    for message_type in types:
        names |= {scope + message_type.name} | _type_names(message_type.nested_type, f"{scope}{message_type.name}.")
    return names


def _weight(container: Any, scope: int) -> int:
    """The number of descriptors that the library makes for a file or type, where a long full name counts as several.
    `scope`: the length of the name around it."""
    total = 0
    for part in _PARTS.get(type(container).__name__, ()):
        for member in getattr(container, part):
            length = scope + 1 + len(member.name)
            total += 1 + length // 512 + _weight(member, length)
    return total


def _with_options(texts: tuple[tuple[str, str], ...]) -> bytes:
    """`_descriptor_set`, also for texts that use Confluent's options without an import, as ksqlDB writes them."""
    try:
        return _descriptor_set(texts)
    except BadSchema as error:
        if 'Option "(confluent.' not in str(error):
            raise
        added = f'\nimport "{_OPTIONS}";\n'
        return _descriptor_set(
            tuple((name, text if f'"{_OPTIONS}"' in text or "(confluent." not in text else text + added)
                  for name, text in texts)
        )  # fmt: skip


def _compiler() -> str:
    """The program that the compiler's process runs."""
    return f"""
import resource, sys
for limit, most in ((resource.RLIMIT_AS, {COMPILER_MEMORY_BYTES}), (resource.RLIMIT_FSIZE, {COMPILER_OUTPUT_BYTES}),
                    (resource.RLIMIT_CPU, {COMPILER_SECONDS}), (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (most, most))
from grpc_tools import protoc
sys.exit(protoc.main(sys.argv))
"""


def _descriptor_set(texts: tuple[tuple[str, str], ...]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kafkafs-proto-") as folder:
        descriptors = Path(folder, "made")
        try:
            for name, text in texts:
                path = Path(folder, "files", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            # -P and its own directory: with -m, Python would import from the working directory, which may be the log's.
            with Path(folder, "said").open("w+b") as output:
                code = subprocess.run(
                    [sys.executable, "-P", "-c", _compiler(), f"-I{folder}/files", *_known_files(),
                     "--include_imports", f"--descriptor_set_out={descriptors}", _MAIN],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output, timeout=COMPILER_SECONDS,
                    cwd=folder, check=False,
                ).returncode  # fmt: skip
                output.seek(0)
                said = _said(output.read(_SAID_BYTES), folder)
            if code == 0:
                return descriptors.read_bytes()
        except subprocess.TimeoutExpired:
            raise BadSchema(f"compiling it takes more than {COMPILER_SECONDS} s") from None
        except (OSError, ValueError) as error:
            raise BadSchema(f"it cannot be compiled: {error}") from None
        if code < 0:
            memory, result = COMPILER_MEMORY_BYTES >> 20, COMPILER_OUTPUT_BYTES >> 20
            most = f"at most {memory} MiB, {COMPILER_SECONDS} s and a result of {result} MiB"
            raise BadSchema(f"compiling it ended with {signal.Signals(-code).name}; the compiler may use {most}")
        raise BadSchema(f"it does not compile: {said or f'exit code {code}'}")


def _said(output: bytes, folder: str) -> str:
    """The compiler's errors in one line, without what its libraries log."""
    text = output.decode(errors="replace").replace(f"{folder}/files/", "").replace(f"{folder}/", "")
    lines = text.replace(_MAIN, "the schema").splitlines()
    return shortened(" ".join(" ".join(line for line in lines if not _LOGGED.match(line)).split()))


def _known_files() -> list[str]:
    """The options that name the directories of the files that need no reference."""
    module = find_spec("grpc_tools")
    assert module is not None
    assert module.origin is not None
    types = find_spec("google.type")
    places = [] if types is None else types.submodule_search_locations or []
    return [
        f"-I{Path(__file__).parent / 'protos'}",
        f"-I{Path(module.origin).parent / '_proto'}",
        *(f"-Igoogle/type={place}" for place in places),
    ]

"""The numbers of kafkafs/CONTRACT.md are those of the code.

Each constant is public in the module that obeys it; tests of that module show that it does.
"""

import re
from inspect import signature

from kafkafs.decoding import avro_program, avro_schema, error_texts, glue_framing, proto_any, proto_files, protobuf
from kafkafs.formats.format import MOST_LINE_BYTES
from kafkafs.reading import blocks as segment_blocks
from kafkafs.reading import index, stretches
from kafkafs.reading.block_cache import DEFAULT_CACHE_BYTES
from kafkafs.reading.handle import LOOK_S
from kafkafs.reading.selection import DEFAULT_LATEST_BYTES
from kafkafs.schemas import registry as schema_registry
from kafkafs.schemas import registry_replay, topic_files
from kafkafs.tree import info, services
from kafkafs.tree.tree import TreeOptions
from kafkafs.writing.refused_lines import RefusedLines
from storage.config import BrokerConfig
from storage.files import names, small_files
from storage.format import batches, decoder, messages
from storage.revival import topics
from storage.tier import blocks
from tests.test_documents import section

CONTRACT = "kafkafs/CONTRACT.md"


def mib(size_bytes):
    count, rest = divmod(size_bytes, 1 << 20)
    assert not rest
    return f"{count} MiB"


def expected_rows():
    """The table of bounds: thing, bound, and what the last column says with a number in it, or nothing."""
    limits = registry_replay.DEFAULT_LIMITS
    assert decoder.MAX_DECOMPRESSED_BYTES == batches.MOST_BATCH_BYTES
    assert decoder.MOST_HEADERS == decoder.MOST_RECORDS
    large = f"{mib(decoder.LARGE_BYTES)} or {decoder.LARGE_RECORDS:,} records"
    compiler = f"{mib(proto_files.COMPILER_MEMORY_BYTES)}, {proto_files.COMPILER_SECONDS} s"
    registry = f"{mib(registry_replay.MOST_RECORD_BYTES)}; {limits.versions:,} each; {mib(limits.all_bytes)}"
    return [
        ("a batch, as it is stored and decompressed", mib(batches.MOST_BATCH_BYTES), ""),
        ("records of a batch; all their headers", f"{decoder.MOST_RECORDS:,} each", ""),
        (
            f"batches above {large} in memory",
            f"{decoder.LARGE_AT_A_TIME} in a process",
            f"others wait up to {decoder.PATIENCE_SECONDS} seconds",
        ),
        ("the line of a message in a file of the tree, and in `cat`", mib(MOST_LINE_BYTES), "EFBIG"),
        ("properties, checkpoints, other small files", mib(small_files.MOST_SMALL_FILE_BYTES), ""),
        (
            "producer snapshots, transaction indexes, manifests, `kafkafs-commits`",
            mib(small_files.MOST_ENTRIES_BYTES),
            "",
        ),
        ("text of a schema", mib(avro_schema.MAX_TEXT), ""),
        (
            "the file of a topic's schema, with what it imports",
            f"{mib(limits.text_bytes)}, {topic_files.MOST_IMPORTS:,} files",
            "EFBIG",
        ),
        ("data of a value that AWS Glue's client compressed", mib(glue_framing.MOST_INFLATED), ""),
        (
            "compiling a Protobuf schema, in its own process",
            f"{compiler}, a result of {mib(proto_files.COMPILER_OUTPUT_BYTES)}",
            "",
        ),
        (
            "programs of the Avro schemas that a view or command uses",
            f"{avro_program.MOST_TOGETHER:,} numbers and bytes of names",
            "",
        ),
        (
            "texts of Protobuf schemas that are searched for the type of an Any, newest versions first; "
            "names of types in them",
            f"{mib(schema_registry.MOST_SEARCHED_TEXT)}, {mib(schema_registry.MOST_SEARCHED_NAMES)}",
            "",
        ),
        (
            "Any within each other in Protobuf data of n bytes",
            f"{proto_any.MOST_WITHIN_EACH_OTHER} messages within each other; {mib(proto_any.MOST_ANY_BYTES)} and "
            f"{proto_any.ANY_BYTES_PER_BYTE} n bytes together",
            "",
        ),
        (
            "descriptors of a Protobuf schema with its imports; one more for each 512 bytes of a full name",
            f"{proto_files.MOST_DESCRIPTORS:,}",
            "",
        ),
        ("descriptors of all Protobuf schemas in use in a process", f"{proto_files.MOST_IN_PROCESS:,}", ""),
        (
            "Avro or Protobuf data of n bytes, as JSON",
            f"{mib(protobuf.MOST_TEXT)} and {protobuf.TEXT_PER_BYTE} n bytes, 128 MiB",
            "",
        ),
        ("Protobuf data", mib(protobuf.MOST_BYTES), ""),
        ("key or value of a record of Kafka's own topics, as JSON", mib(messages.MOST_JSON), ""),
        (
            "committed offsets, groups, transactional ids, remote segments and the cluster's metadata, in a process",
            f"{mib(messages.MOST_HELD)}: some 600,000 committed offsets, 250,000 partitions",
            "",
        ),
        ("records of `_schemas`; versions, and compatibility levels; all that they hold", registry, ""),
        ("the text of an `error`", f"about {error_texts.MOST_SHOWN} characters", ""),
    ]


def test_the_table_of_bounds():
    text = section(CONTRACT, "Safe to look at")
    rows = re.findall(r"^\| (?!thing)(?!-)(.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    expected = expected_rows()
    assert [row[:2] for row in rows] == [row[:2] for row in expected]
    for row, (_, _, above) in zip(rows, expected, strict=True):
        assert above in row[2]


def sentences(title):
    return " ".join(section(CONTRACT, title).split())


def test_numbers_in_sentences():
    """By section: a sentence as it must be with the constants of the code."""
    limits, options = registry_replay.DEFAULT_LIMITS, TreeOptions()
    kept = signature(index.BlockIndex).parameters["kept_bytes"].default
    assert (options.cache_bytes, options.latest_bytes) == (DEFAULT_CACHE_BYTES, DEFAULT_LATEST_BYTES)
    assert stretches.INDEX_BYTES == options.index_bytes == blocks.DISK_BYTES == 1 << 30
    for title, expected in {
        "Safe to look at": [
            f"A partition numbered above {names.MAX_PARTITIONS - 1:,} is hidden.",
            f"`revive` makes at most {topics.MOST_PARTITIONS:,} partitions.",
        ],
        "The tree": [f"if finding it would read more than {mib(info.COUNTED_BYTES)} of the log"],
        "Names": [f"1 to {names.MAX_TOPIC_LENGTH} characters"],
        "Schemas": [f"{mib(limits.text_bytes)} of text for a schema", f"{limits.versions:,} versions"],
        "Ranges": [f"within {LOOK_S} seconds", "in `~/.cache/kafkafs/tier`, at most 1 GiB"],
        "Keys": [
            f"if there are at most {segment_blocks.MOST_NAMES:,}, otherwise nothing",
            f"names have more than {segment_blocks.MOST_KEY_BYTES} bytes",
            "(at most 1 GiB together; 10 bits for each distinct key",
            f"of about {segment_blocks.BLOCK_BYTES >> 10} KiB)",
        ],
        "The latest": [f"above `-o latest_memory` ({DEFAULT_LATEST_BYTES >> 20}M) the open fails with ENOMEM"],
        "Status": [f"the last {RefusedLines.KEPT}, the oldest first"],
        "Groups": [f"`offsets.topic.num.partitions` ({BrokerConfig.from_values({}).offsets_topic_num_partitions})"],
        "Mount options": [
            f"`cache_size={DEFAULT_CACHE_BYTES >> 20}M`, `latest_memory={DEFAULT_LATEST_BYTES >> 20}M`",
            f"It remembers at most {services.KEPT_STATES:,} states of closed files, {index.KEPT_STRETCHES:,} measured "
            f"parts of segments, {mib(kept)} of segments' sizes, times and key filters, and "
            f"{mib(services.LatestMemory.KEPT_BYTES)} of offsets of closed `latest` files",
        ],
        "Decoding in detail": [f"more than {proto_files.MOST_FILES:,} references"],
    }.items():
        text = sentences(title)
        assert [sentence for sentence in expected if sentence not in text] == [], title


def test_the_registry_s_bound_is_the_same_in_both_places():
    together = re.search(r"([\d,]+ MiB) together", sentences("Schemas"))
    assert together
    assert together[1] == mib(registry_replay.DEFAULT_LIMITS.all_bytes)

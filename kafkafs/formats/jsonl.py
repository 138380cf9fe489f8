"""`jsonl`: one JSON object a line (kafkafs/CONTRACT.md, "Formats")."""

from __future__ import annotations

from kafkafs.formats import program
from storage.types import TopicPartition


class Jsonl(program.ProgramFormat):
    """For the records of one partition, whose name is in each line. Topic names need no escapes."""

    def __init__(self, tp: TopicPartition) -> None:
        lines = program.Program.of(
            [
                f'{{"topic":"{tp.topic}","partition":{tp.partition},"offset":'.encode(),
                program.OFFSET,
                b',"timestamp":',
                program.TIMESTAMP,
                b',"timestampType":"',
                program.TIMESTAMP_TYPE,
                b'","key":',
                program.JSON_KEY,
                b',"value":',
                program.JSON_VALUE,
                b',"headers":[',
                program.JSON_HEADERS,
                b"]}\n",
            ]
        )
        super().__init__("jsonl", lines)

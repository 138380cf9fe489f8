"""The bytes of a Kafka log, pure: no I/O, no clock, no logging. FORMAT.md lays them out.

Reading: `batches.scan` (headers of a buffer into a BatchTable), then `decoder.Decoder` (rows of it into a RecordBlock).
"""

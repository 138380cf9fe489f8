"""Tests of storage and kafkafs. `tests/storage` and `tests/kafkafs` mirror the code; `interop` runs a real broker."""

"""Writing: one partition's log that this process owns.

In: encoded batches or columns of messages, and calls to roll, flush and swap segments. Out: segments and
their indexes as a broker would have written them, durable when `flush` returns. The entry point is `PartitionLog`.
"""

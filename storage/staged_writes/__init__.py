"""Batches that were written beside the segments and wait for their offsets: Spark's exactly-once writes.

In: staged files, and the ledger `kafkafs-commits` that says which write they are of. Out: each write's batches in their
partitions, all of them or none, once.
"""

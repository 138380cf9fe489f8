"""Batches that were written next to the segments and wait for their offsets: Spark's exactly-once writes.

In: staged files, and the ledger `kafkafs-commits`, which says to which write each of them belongs. Out: each write's
batches in their partitions, eventually all of them, once.
"""

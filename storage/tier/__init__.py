"""Tiers: places outside of a log directory that hold the segments of tiered partitions (KIP-405).

In: a directory or a URL, and private keys. Out: for each partition its remote segments, and byte ranges of their files,
decrypted and decompressed. `storage.log` decides which of the segments belong to the log. Nothing is ever written to a
tier.
"""

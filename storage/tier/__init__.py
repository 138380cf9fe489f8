"""Tiers: places outside of a log directory that hold the segments of tiered partitions (KIP-405).

In: a directory or a URL, and private keys. Out: for each partition its remote segments, and byte ranges of their parts
as the broker had them, decrypted and decompressed. Which of the segments belong to the log is for `storage.log` to say.
Nothing is ever written to a tier.
"""

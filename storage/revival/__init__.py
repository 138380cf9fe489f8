"""A new log directory that a broker starts on, made from what is left of others.

In: log directories and single partitions' directories of dead brokers, which are only read. Out: a directory with the
same messages at the same offsets, and everything else that a KRaft broker of one node needs.
"""

"""Building a log directory that a broker can start from, out of the remains of others.

In: log directories and single partitions' directories of dead brokers, which are only read. Out: a directory with the
same messages at the same offsets, and everything else that a KRaft broker of one node needs.
"""

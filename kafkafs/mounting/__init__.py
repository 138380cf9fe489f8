"""A mount from start to stop: the process, libfuse, errors turned into errnos, status.

In: a log directory, a mountpoint, options. Out: FUSE's calls answered from the tree. Only `operations` imports fuse.
"""

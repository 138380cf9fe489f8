"""From a path to its node.

In: a path as FUSE gives it. Out: a view of the node, with its attributes and entries, which can be
opened. `reading` makes the bytes of record files, and `writing` turns written bytes into messages.
"""

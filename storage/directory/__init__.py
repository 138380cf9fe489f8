"""A log directory that this process owns: locked, recovered, its checkpoints maintained.

In: a path. Out: each partition's `PartitionLog`, opened on first use; topics created, changed and removed; finally a
clean shutdown.
"""

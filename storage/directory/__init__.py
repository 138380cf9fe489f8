"""A log directory that this process owns: locked, recovered, its checkpoints kept.

In: a path. Out: each partition's `PartitionLog`, opened when first asked for; topics made, changed and removed; at the
end a clean shutdown.
"""

"""The engine and the mount, simulated: one seed decides the order of threads, the time, the workload and the faults.

    python -m tests.simulation --seeds 2000            # from a fresh number on, until one fails
    python -m tests.simulation --seed 4711 --steps     # one again, with every step
    python -m tests.simulation --shrink 4711           # the same failure in few operations, printed as a test
    python -m tests.simulation --mutations             # plants faults: which seed finds each of them

A seed becomes a plan (`drawing`, `plan`): topics, processes one after the other on the same directory, the programs
that run in each, their operations, faults. Its theme (`themes`) says which features of the product it concentrates on.
`runs` carries it out. `scheduler` runs real threads one at a time and chooses who goes on at each switch point; `locks`
makes every lock of storage and kafkafs such a point, `disk` every operation of the disk; `world` is what programs were
told; `mounts`, `writers`, `readers` and `programs` are the programs, which use the mount as the kernel does; `rotting`
flips bits; `oracle` says what must hold, and `last_looks` what a mount must show at its end. `mutations` plants the
faults of `planted`. Nothing sleeps, and nothing depends on the machine's time.

Recovery repairs much, so a state is looked at before as well: while a process runs, and where it was killed.

| state | guarded by |
|---|---|
| messages, their order and offsets; lines that were refused | `oracle` |
| a follower's batches; what a cleaner must leave (last of a key, of a producer, markers) | `oracle`, `cleaned` |
| `.index`, `.timeindex` | `states.ActiveIndexes` (to the byte, while a follower's segment is written), verify |
| `.txnindex`, producers, `.snapshot`, leader epochs, log start, recovery point | `states`, `remains`, verify |
| checkpoints, `.kafka_cleanshutdown`, where segments end, removed segments and topics | `remains`, `cleaned` |
| `topic.properties`, configuration in force, partitions of a topic, offline partitions | `programs.Administrator` |
| partitions of a topic that is made or removed in part | `disk.check_partitions`, at each rename |
| retention.bytes, retention.ms, flush.ms, delete.retention.ms: neither too early nor too late | `disk`, `upkept` |
| lines of a file that is open with O_SYNC | `writers`, `World.synced` |
| `kafkafs-commits`, staged files | `programs.Driver` (a query goes on, and is resumed), `oracle` |
| groups' offsets | `runs` |
| open views, positions, page cache, `latest` | `readers`, `last_looks` |
| `.lock`, `partition.metadata`, view and key indexes on disk, `keys/`, status | verify; the tests of their packages |
"""

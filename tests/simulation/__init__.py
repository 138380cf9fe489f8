"""The engine and the mount, simulated: one seed decides the order of threads, the time, the workload and the faults.

    python -m tests.simulation --seeds 2000            # from a fresh number on, until one fails
    python -m tests.simulation --seed 4711 --steps     # one again, with every step
    python -m tests.simulation --shrink 4711           # the same failure in few operations, printed as a test
    python -m tests.simulation --mutations             # plants faults: which seed finds each of them

A seed becomes a plan (`drawing`, `plan`): topics, processes one after the other on the same directory, the programs
that run in each, their operations, faults. Its theme (`themes`) says which features of the product it concentrates on.
`runs` carries it out. `scheduler` runs real threads one at a time and chooses who goes on at each switch point; `locks`
makes every lock of storage and kafkafs such a point; `world` is the disk, the clock and what programs were told;
`mounts`, `writers`, `readers` and `programs` are the programs, which use the mount as the kernel does; `rotting` flips
bits; `oracle` says what must hold, and `last_looks` what a mount must show at its end. `mutations` plants the faults of
`planted`. Nothing sleeps, and nothing depends on the machine's time.

Recovery repairs much, so a state is looked at before as well: while a process runs, and where it was killed.

| state | guarded by |
|---|---|
| messages, their order and offsets; lines that were refused | `oracle` |
| a follower's batches; what a cleaner must leave (last of a key, of a producer, markers) | `oracle`, `cleaned` |
| `.index`, `.timeindex` | `states.ActiveIndexes` (to the byte, while a follower's segment is written), verify |
| `.txnindex` | verify; what is below the recovery point is on the disk: `states.check_durable` |
| producers, `.snapshot` at a roll, at the end | `states.check_producers`, `check_snapshot`, `remains`; verify |
| leader epochs: in memory, on disk before their batches, recovered | `states.check_log`, `check_epochs`, `remains` |
| log start: in memory, its checkpoint | `states.check_copy`, `remains`, `oracle` |
| checkpoint lines of a removed topic | `programs.Administrator` |
| recovery point, its checkpoint: below it all is on the disk, and nothing else | `states.check_durable`, `remains` |
| high watermark's checkpoint | `remains.check_closed` |
| cleaner's checkpoint | `cleaned.check_unique`, `remains.check_closed` |
| `.kafka_cleanshutdown` | `remains.check_closed` |
| `topic.properties`, configuration in force | `programs.Administrator`, `runs`, verify |
| `partition.metadata` | verify |
| partitions of a topic that is made or removed in part | `world.check_partitions`, at each rename |
| partitions that were made or added: all of them, with one configuration and id | `programs.Administrator`, `remains` |
| retention.bytes, retention.ms: neither too early nor too late | `world`, `upkept` |
| flush.ms | `upkept.Flushed` |
| deleted keys (delete.retention.ms) | `cleaned`, `upkept` |
| producers' expiry | `states.check_producers` |
| where segments end (segment.bytes, segment.ms) | `remains` |
| removed segments and topics (`.deleted`, `-delete`) | `remains.check_closed`, `runs` |
| lines of a file that is open with O_SYNC | `writers`, `World.synced` |
| `kafkafs-commits`, staged files | `programs.Driver` (a query goes on, and is resumed), `oracle` |
| groups' offsets | `runs` (`_check_groups`) |
| open views, positions, page cache, `latest` | `readers`, `last_looks` |
| status: partitions that are offline | `programs.Administrator` |
| `.lock`, view and key indexes on disk, `keys/`, status otherwise | nothing here: the tests of their packages |
"""

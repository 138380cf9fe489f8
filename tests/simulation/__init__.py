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
"""

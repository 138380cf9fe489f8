"""The engine and the mount, simulated: one seed decides the order of threads, the time, the workload and the faults.

    python -m tests.simulation --seeds 2000            # from a fresh number on, until one fails
    python -m tests.simulation --seed 4711 --steps     # one again, with every step

`scheduler` runs real threads one at a time and chooses who goes on at each switch point; `locks` makes every lock of
storage and kafkafs such a point; `world` is the disk, the clock and what was acknowledged; `actors` are the programs
that use the mount; `oracle` says what must hold. Nothing sleeps, and nothing depends on the machine's time.
"""

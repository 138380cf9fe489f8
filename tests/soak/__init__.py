"""Hours of ordinary use: a mount (and a live broker, on request) under writers, readers, retention, compaction, kills.

In: how long, how fast. Out: what was written, and how much of it was lost, doubled, invented or out of order, which
must be nothing; memory, descriptors and threads of the mount over time. `python -m tests.soak --minutes 60`.
"""

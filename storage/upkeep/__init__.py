"""Periodic work on a log directory: retention, and the background thread that runs retention and compaction.

In: an owned log directory and the clock. Out: segments removed, log starts moved. `salvage`, which copies what is
intact from damaged logs, is here too.
"""

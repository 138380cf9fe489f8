"""Work on a log directory that time makes due: retention, and the background thread that runs it and compaction.

In: an owned log directory and the clock. Out: segments removed, log starts moved. `salvage`, which copies what is
intact from damaged logs, is here too.
"""

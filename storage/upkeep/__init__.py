"""What is done to a log directory as time goes by: retention, and the background thread that runs it and compaction.

In: an owned log directory and the clock. Out: segments removed, log starts moved. `salvage` is here too: what can be
copied out of damaged logs.
"""

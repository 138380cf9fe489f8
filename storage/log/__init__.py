"""Reading: one partition's log as its files show it, and all logs of a directory.

In: a directory that other processes may be writing to. Out: snapshots (segments, log start and end), windows of checked
batches, blocks of records, committed data. Nothing in this package changes a file.
"""

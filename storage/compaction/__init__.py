"""Compaction: the latest message of each key is kept (LogCleaner).

In: a log with `cleanup.policy=compact`. Out: its segments rewritten and swapped in. A pass runs in one process or
is divided among Spark's tasks. See storage/DESIGN.md, "Compaction".
"""

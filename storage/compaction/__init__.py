"""Compaction: of each key the last message is kept (LogCleaner).

In: a log with `cleanup.policy=compact`. Out: its segments rewritten and swapped in. A pass is done in one process, or
divided among Spark's tasks.
"""

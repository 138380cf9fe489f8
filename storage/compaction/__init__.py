"""Compaction: the latest message of each key is kept (LogCleaner).

In: a log with `cleanup.policy=compact`. Out: its segments rewritten and swapped in. See storage/DESIGN.md,
"Compaction".
"""

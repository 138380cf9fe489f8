"""Which messages are meant: the names of ranges, and what commands and Spark's jobs select.

In: names such as `100-199` and `2026-11-20`, or options of a command. Out: offsets, time ranges, masks over columns.
"""

"""Selecting messages: the names of ranges, and the options of commands and Spark's jobs.

In: names such as `100-199` and `2026-11-20`, or options of a command. Out: offsets, time ranges, masks over columns.
"""

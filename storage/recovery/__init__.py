"""Turns a partition's directory, as a crash left it, into sound segments.

In: the directory and its recovery point. Out: its segments, its producers, and a report of everything that was cut,
deleted or rebuilt; or the report alone, from a dry run that changes nothing.
"""

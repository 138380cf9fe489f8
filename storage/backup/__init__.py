"""Copies of a log directory, and comparison of the records of two logs.

In: log directories. Out: a copy and its manifest (mirror), digests of records.
"""

"""Copies of a log directory, and whether two logs hold the same records.

In: log directories. Out: a copy and its manifest (mirror), digests of records.
"""

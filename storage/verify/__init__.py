"""Finds faults of a log directory: checks every file against the others.

In: a log directory that nothing, or another process, has open. Out: findings, each with what, where, how bad, and what
recovery or a person can do about it. Nothing here changes a file.
"""

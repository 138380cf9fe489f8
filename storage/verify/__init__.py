"""Finds what is wrong with a log directory: every file is checked against the others.

In: a log directory that nothing, or another process, has open. Out: findings, each with what, where, how bad, and what
recovery or a person can do about it. Nothing here changes a file.
"""

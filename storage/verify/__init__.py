"""What is wrong with a log directory: every file checked against what the others say.

In: a log directory, opened by nobody or by somebody else. Out: findings, each with what, where, how bad, and what
recovery or a person does about it. Nothing here changes a file.
"""

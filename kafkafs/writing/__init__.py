"""From written bytes to messages in a log.

In: lines of txt or jsonl, cut anywhere, some of them bad, some of them written again after an error. Out: appended
messages, and an errno for the write that caused it.
"""

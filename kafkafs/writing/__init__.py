"""From bytes that are written to messages in a log.

In: lines of txt or jsonl, cut anywhere, some of them bad, some of them sent again after an error. Out: appended
messages, and an errno at the write that is to blame.
"""

"""From written bytes to messages in a log.

In: lines of txt or jsonl, cut anywhere, some of them bad. Out: appended messages, and an error from the first line on
that cannot be appended.
"""

"""What a file of records shows: `messages.txt`, `offsets/…`, `time/…`, and the same without a mount.

In: a log, a range, a format. Out: exact sizes and any bytes of the file, while the log grows, shrinks or is damaged.
"""

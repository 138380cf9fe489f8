"""The content of files of records: `messages.txt`, `offsets/…`, `time/…`, and the same without a mount.

In: a log, a range, a format. Out: exact sizes and any bytes of the file, while the log grows, shrinks or is damaged.
"""

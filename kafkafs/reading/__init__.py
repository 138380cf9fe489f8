"""Choosing messages, and the content of files of records: `messages.txt`, `offsets/…`, `time/…`; also without a mount.

In: a log, a range, a format. Out: exact sizes and any bytes of the file, while the log grows, shrinks or is damaged.
The place of a message in a file is measured once, and for sealed segments kept in the user's cache directory.
"""

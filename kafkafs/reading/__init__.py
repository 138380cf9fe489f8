"""Which messages are meant, and the content of files of records: `messages.txt`, `offsets/…`, `time/…`; also unmounted.

In: a log, a range, a format. Out: exact sizes and any bytes of the file, while the log grows, shrinks or is damaged.
Where a message is in a file is measured once, and for sealed segments kept in the user's cache directory.
"""

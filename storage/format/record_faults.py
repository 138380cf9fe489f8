"""What can be wrong with the records of a v2 batch, by the numbers that kernel.py gives."""

from __future__ import annotations

# (what, what was expected: the number goes in); the kernel has names for the indexes.
FAULTS = (
    ("", ""),
    ("record count does not fit the batch's size", "0 to {}"),
    ("record length does not fit the batch", "6 to {}"),
    ("a variable-length integer does not end in time", "at most {} bytes"),
    ("offset delta passes the 64-bit limit", "a sum with {} of 0 or more"),
    ("key length does not fit the record", "at most {}"),
    ("value length does not fit the record", "at most {}"),
    ("header count does not fit the record", "0 to {}"),
    ("header key length does not fit the record", "0 to {}"),
    ("header value length does not fit the record", "at most {}"),
    ("record fields do not fill the record", "{} bytes"),
    ("bytes are left after the batch's last record", "{}"),
    ("base offset is negative", "{} or more"),
    ("last offset is no offset from the base offset on", "{} or more"),
    ("fewer records than the batch declares", "{}"),
    ("more records than columns have room for", "at most {}"),
    ("batch lies outside of the buffer", "an end within {}"),
)

"""The position of each batch in a rendered file, found without reading what precedes it.

In: a segment and a format. Out: for every 256 KiB or so of rendered bytes the batch that they begin with; measured when
first needed, extended as the log grows, kept in the user's cache directory.
"""

"""Where in a rendered file each batch lies, without reading what lies before it.

In: a segment and a format. Out: for every 256 KiB or so of rendered bytes the batch that they begin with; measured when
first needed, extended as the log grows, kept in the user's cache directory.
"""

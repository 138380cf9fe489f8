"""From a path to its node.

In: a path as FUSE hands it over. Out: a node that can be asked for its attributes, entries and extended attributes,
and opened. How the bytes of record files come about is the business of `views`, and how written bytes become messages
that of `writing`.
"""

"""The latest record of each key: what compaction keeps, and what `latest.txt` shows.

In: blocks of records with keys. Out: the offsets of the latest ones, in bounded memory. Changes nothing.
"""

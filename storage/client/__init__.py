"""What users of a log need beside it, without a broker to ask.

In: a log or a log directory. Out: fetch results, offsets by time, counts, histograms, a key's partition, replica
assignments, groups' committed offsets, copies (mirror).
"""

"""What users of a log need in addition to it, without a broker.

In: a log or a log directory. Out: fetch results, offsets by time, counts, histograms, a key's partition, replica
assignments, groups' committed offsets, copies (mirror) and their manifests, logs cut at a moment, digests of records.
"""

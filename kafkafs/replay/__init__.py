"""Produces messages of a log directory into a running cluster, and knows which of them have arrived.

In: blocks of records. Out: messages at the cluster, and a map from the offsets of the log to the cluster's.
"""

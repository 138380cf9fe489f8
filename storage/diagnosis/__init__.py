"""Predictions of what a broker will do when it starts on a log directory, with remedies. Nothing is changed.

In: the log directories of one stopped broker, perhaps its server.properties. Out: predictions, each with its place, the
broker's reaction and a remedy.
"""

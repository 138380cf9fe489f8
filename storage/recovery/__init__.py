"""From a partition's directory as a crash left it to segments that are sound.

In: the directory and its recovery point. Out: its segments, its producers, and a report of all that was cut, deleted or
rebuilt. The same as a dry run, which changes nothing.
"""

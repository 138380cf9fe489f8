# The constants of proto_kernel.py, explained there.

cdef enum:
    _FULL = -1
    _LIBRARY = -2
    _SPARE = 64
    _MOST_WITHIN_EACH_OTHER = 60
    _MOST_ENTRIES = 256
    _MOST_MOVED = 16
    _TYPE = 3
    _FIELD = 8
    _TAG = 0
    _CODE = 1
    _FLAGS = 2
    _NAME = 3
    _NAME_LENGTH = 4
    _BELOW = 5
    _DEFAULT = 6
    _ONEOF = 7
    _REPEATED = 1
    _MAP = 4
    _MESSAGE = 0
    _TIMESTAMP = 1
    _DURATION = 2
    _WRAPPER = 3
    _STRUCT = 4
    _VALUE = 5
    _LIST = 6
    _UNCOVERED = 7

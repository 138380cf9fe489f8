# The numbers of columns.py, which says what they are.

cdef enum:
    POSITION = 0
    SIZE = 1
    BASE_OFFSET = 2
    LAST_OFFSET = 3
    COUNT = 4
    MAGIC = 5
    ATTRIBUTES = 6
    BASE_TIMESTAMP = 7
    MAX_TIMESTAMP = 8
    PRODUCER_ID = 9
    PRODUCER_EPOCH = 10
    BASE_SEQUENCE = 11
    LEADER_EPOCH = 12
    CRC = 13

cdef enum:
    OFFSET = 0
    TIMESTAMP = 1
    KEY_START = 2
    KEY_LENGTH = 3
    VALUE_START = 4
    VALUE_LENGTH = 5
    HEADERS_START = 6
    HEADERS_COUNT = 7
    BATCH = 8
    HEADERS_LENGTH = 8

# What pure-Python mode has no words for.

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* address) noexcept nogil

# The numbers of decode_kernel.py, which says what they are.
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
    STOP_END = 0
    STOP_FULL = 1
    STOP_CORRUPT = 2
    STOP_UNSUPPORTED = 3
    CODEC_BITS = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    CONTROL_BIT = 0x20
    OVERHEAD = 12
    BYTES_UP_TO_MAGIC = 17
    V0_SIZE = 26
    V1_SIZE = 34
    V2_SIZE = 61
    LEAST_RECORD = 7
    LEAST_BODY = 6
    AHEAD = 4096
    PLAIN_AHEAD = 2048
    SHORT = 8192
    COUNT_FAULT = 1
    LENGTH_FAULT = 2
    VARINT_FAULT = 3
    OFFSET_FAULT = 4
    KEY_FAULT = 5
    VALUE_FAULT = 6
    HEADER_COUNT_FAULT = 7
    HEADER_KEY_FAULT = 8
    HEADER_VALUE_FAULT = 9
    BODY_FAULT = 10
    LEFTOVER_FAULT = 11
    BASE_OFFSET_FAULT = 12
    LAST_OFFSET_FAULT = 13
    RECORDS_FAULT = 14
    CAPACITY_FAULT = 15
    MESSAGE_SIZE_FAULT = 16
    MESSAGE_KEY_FAULT = 17
    MESSAGE_VALUE_FAULT = 18
    MESSAGE_MAGIC_FAULT = 19
    NESTED_FAULT = 20
    EMPTY_FAULT = 21
    WRAPPER_OFFSET_FAULT = 22
    MESSAGE_OFFSET_FAULT = 23
    MESSAGE_CAPACITY_FAULT = 24
    BOUNDS_FAULT = 25

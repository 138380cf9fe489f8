# C functions that pure-Python mode lacks: the upper half of a product of two 64-bit numbers, the number of zeros below
# the lowest bit that is set, and the lower seven bits of each byte of a word, joined. Then two digits for each number
# below 100, the order of bytes in a word, and the constants of avro_kernel.py.

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint64_t kafkafs_high_product(uint64_t a, uint64_t b) {
    #if defined(__SIZEOF_INT128__)
        return (uint64_t)(((unsigned __int128)a * b) >> 64);
    #else
        uint64_t low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF), middle = (a >> 32) * (b & 0xFFFFFFFF) + (low >> 32);
        uint64_t other = (a & 0xFFFFFFFF) * (b >> 32) + (middle & 0xFFFFFFFF);
        return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
    #endif
    }
    #define KAFKAFS_ONES 0x0101010101010101ULL
    static inline uint64_t kafkafs_sevens(uint64_t word) {
        word = (word & 0x007F007F007F007FULL) | ((word & 0x7F007F007F007F00ULL) >> 1);
        word = (word & 0x00003FFF00003FFFULL) | ((word & 0x3FFF00003FFF0000ULL) >> 2);
        return (word & 0x0FFFFFFFULL) | ((word & 0x0FFFFFFF00000000ULL) >> 4);
    }
    static const char kafkafs_pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
        "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
        "8081828384858687888990919293949596979899";
    """
    unsigned long long high_product "kafkafs_high_product"(unsigned long long a, unsigned long long b) noexcept nogil
    int trailing_zeros "__builtin_ctzll"(unsigned long long word) noexcept nogil
    unsigned long long sevens "kafkafs_sevens"(unsigned long long word) noexcept nogil
    const char* PAIRS "kafkafs_pairs"
    const unsigned long long _TEN_TO_8 "100000000ULL"
    const unsigned long long _ONES "KAFKAFS_ONES"
    const unsigned long long _HIGHS "(KAFKAFS_ONES * 128)"
    bint LITTLE_ENDIAN "(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)"

cdef enum:
    _SPARE = 64
    _FRAME = 4

# Functions that write values, for `proto_kernel.py` too.
cdef long long _digits(unsigned char* out, long long position, unsigned long long rest, long long count) noexcept nogil
cdef long long _digit_count(unsigned long long rest) noexcept nogil
cdef long long _number(unsigned char* out, long long position, long long value) noexcept nogil
cdef long long _float(unsigned char* out, long long position, unsigned long long bits, long long fraction_bits, long long top, const unsigned long long* powers) noexcept nogil
cdef long long _escaped(unsigned char* out, long long position, const unsigned char* text, long long start, long long length, long long size) noexcept nogil
cdef long long _escaped_size(const unsigned char* text, long long start, long long length) noexcept nogil
cdef long long _base64(unsigned char* out, long long position, const unsigned char* text, long long start, long long length) noexcept nogil
cdef long long _date(unsigned char* out, long long position, long long days) noexcept nogil

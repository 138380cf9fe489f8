# What pure-Python mode has no words for: the upper half of a product of two 64-bit numbers, and the order of bytes in a word.

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
    """
    unsigned long long high_product "kafkafs_high_product"(unsigned long long a, unsigned long long b) noexcept nogil
    bint LITTLE_ENDIAN "(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)"

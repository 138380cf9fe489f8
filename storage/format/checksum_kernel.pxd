# What pure-Python mode has no words for: the processor's own CRC-32C instruction, where there is one.
#
# It takes three cycles and another can begin each cycle, so three spans are done side by side and put together by
# tables that carry a CRC over so many zero bytes (Mark Adler's crc32c.c).

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    static int kafkafs_has_crc32c(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    static inline uint64_t kafkafs_carry(uint64_t crc, const uint32_t *over) {
        return over[crc & 0xFF] ^ over[256 + (crc >> 8 & 0xFF)] ^ over[512 + (crc >> 16 & 0xFF)] ^ over[768 + (crc >> 24)];
    }
    __attribute__((target("sse4.2")))
    static uint64_t kafkafs_spans(
        const unsigned char **data, size_t *left, uint64_t crc, size_t span, const uint32_t *over
    ) {
        const unsigned char *at = *data;
        while (*left >= 3 * span) {
            uint64_t second = 0, third = 0, a, b, c;
            const unsigned char *end = at + span;
            /* What comes next is asked for meanwhile: checked decoding from memory is a tenth faster. */
            for (size_t ahead = 0; ahead < 3 * span; ahead += 64)
                __builtin_prefetch(at + 3 * span + ahead);
            do {
                memcpy(&a, at, 8);
                memcpy(&b, at + span, 8);
                memcpy(&c, at + 2 * span, 8);
                crc = __builtin_ia32_crc32di(crc, a);
                second = __builtin_ia32_crc32di(second, b);
                third = __builtin_ia32_crc32di(third, c);
                at += 8;
            } while (at < end);
            crc = kafkafs_carry(crc, over) ^ second;
            crc = kafkafs_carry(crc, over) ^ third;
            at += 2 * span;
            *left -= 3 * span;
        }
        *data = at;
        return crc;
    }
    __attribute__((target("sse4.2")))
    static uint32_t kafkafs_crc32c(const unsigned char *data, size_t left, const uint32_t *over) {
        uint64_t crc = 0xFFFFFFFF, word;
        crc = kafkafs_spans(&data, &left, crc, 1024, over);
        crc = kafkafs_spans(&data, &left, crc, 128, over + 1024);
        for (; left >= 8; left -= 8, data += 8) {
            memcpy(&word, data, 8);
            crc = __builtin_ia32_crc32di(crc, word);
        }
        for (; left > 0; left--, data++)
            crc = __builtin_ia32_crc32qi((uint32_t)crc, *data);
        return (uint32_t)crc ^ 0xFFFFFFFF;
    }
    #else
    static int kafkafs_has_crc32c(void) { return 0; }
    static uint32_t kafkafs_crc32c(const unsigned char *data, size_t left, const uint32_t *over) { return 0; }
    #endif
    """
    bint hardware_crc32c_works "kafkafs_has_crc32c"() noexcept nogil
    # Tables carry over 1024 bytes, then over 128: uint32[2][4][256].
    unsigned int hardware_crc32c "kafkafs_crc32c"(const unsigned char* data, size_t size, const unsigned int* tables) noexcept nogil

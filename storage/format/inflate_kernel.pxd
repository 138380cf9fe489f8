# What pure-Python mode has no words for: the C functions of the codec libraries, called by address.

ctypedef size_t (*zstd_decompress_t)(void*, void*, size_t, const void*, size_t) noexcept nogil
ctypedef size_t (*lz4_decompress_t)(void*, void*, size_t*, const void*, size_t*, const void*) noexcept nogil
ctypedef void (*lz4_reset_t)(void*) noexcept nogil

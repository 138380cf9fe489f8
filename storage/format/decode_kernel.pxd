# What pure-Python mode has no words for.

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* address) noexcept nogil

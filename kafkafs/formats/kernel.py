# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
import cython


def is_compiled() -> bool:
    return bool(cython.compiled)

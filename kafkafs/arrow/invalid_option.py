"""The error of a caller who passes an invalid argument or option, to Python's functions or to Spark."""


class InvalidOption(ValueError):
    """An option that is unknown, missing, malformed, or excluded by another one."""

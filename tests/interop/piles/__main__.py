"""`python -m tests.interop.piles` is `python -m tests.interop piles`."""

import sys

from tests.interop.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "piles")
    main()

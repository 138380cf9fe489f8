"""`python -m kafkafs`"""

from __future__ import annotations

import sys

from kafkafs.cli import main

if __name__ == "__main__":
    sys.exit(main(prog_name="kafkafs"))

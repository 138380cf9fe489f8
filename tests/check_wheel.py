"""Whether an installed wheel works where there is neither a compiler nor FUSE: python tests/check_wheel.py SAMPLE

SAMPLE is examples/sample-log. Run in the environment that the wheel was installed into; the checkout is not imported.
"""

import subprocess
import sys
from pathlib import Path


def output(*arguments):
    """The output of the installed kafkafs."""
    command = [str(Path(sys.executable).with_name("kafkafs")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    (sample,) = sys.argv[1:]
    assert "kernels: compiled" in output("--version").splitlines()
    assert output("count", sample, "orders").split()[-1] == "700"
    assert output("verify", sample).splitlines()[-1] == "nothing wrong"
    assert "_KAFKAFS_COMPLETE" in output("completion", "bash")
    assert (Path(sys.prefix) / "share/man/man1/kafkafs.1").is_file()


if __name__ == "__main__":
    main()

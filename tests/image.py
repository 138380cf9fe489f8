"""The steps of examples/Dockerfile in a chroot, where there is no docker: python -m tests.image DIR (as root, 2 GB)

A base image `python:VERSION-slim-SUITE` is the Debian of that name with its own Python, made by debootstrap in DIR/base
if it is not there. Each stage is a copy of it, in which RUN, COPY, ENV, USER and WORKDIR do what they do for docker. In
the end the last stage is used as its ENTRYPOINT and USER say.
"""

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.fixtures import ROOT

DOCKERFILE = ROOT / "examples" / "Dockerfile"
# What the base image has and Debian's smallest installation has not.
PYTHON = "python3,python3-venv,python3-dev,ca-certificates"
# Paths of the machine's own that programs inside need to reach a registry.
SHARED = ("etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")


def instructions(text):
    """Name and arguments of each, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


@dataclass
class Stage:
    """An image as a directory, and how a container of it starts."""

    root: Path
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    user: str = "0:0"
    directory: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def run(self, *command):
        """The output of a command in it, with a /proc of the machine."""
        passed = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        variables = [f"{name}={value}" for name, value in (passed | self.environment).items()]
        inside = ["chroot", f"--userspec={self.user}", self.root, "env", "-i", *variables]
        inside += ["sh", "-c", f'cd {self.directory} && exec "$@"', "sh", *command]
        # Not in a mount namespace: it would keep what others here unmount meanwhile.
        subprocess.run(["mount", "-t", "proc", "proc", self.root / "proc"], check=True)
        try:
            return subprocess.run(inside, stdout=subprocess.PIPE, text=True, check=True).stdout
        finally:
            subprocess.run(["umount", "--lazy", self.root / "proc"], check=True)

    def copy(self, source, target):
        """COPY: a directory's content, or a file into a directory that ends with a slash."""
        to = self.root / target.lstrip("/")
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")  # .dockerignore
            shutil.copytree(
                source, to, symlinks=True, dirs_exist_ok=True, ignore=ignored if ROOT in source.parents else None
            )
        else:
            to = to / source.name if target.endswith("/") else to
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to)


def make_base(directory, image):
    """Makes the base image, if it is not there."""
    if (directory / "usr/local/bin/python").is_symlink():
        return
    suite = image.rpartition("-")[2]
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={PYTHON}", suite, directory], check=True)
    for name in SHARED:
        if Path("/", name).exists():
            shutil.copy(Path("/", name), directory / name)
    (directory / "etc/mtab").symlink_to("/proc/mounts")
    os.mknod(directory / "dev/fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
    (directory / "dev/fuse").chmod(0o666)
    (directory / "usr/local/bin/python").symlink_to("/usr/bin/python3")


def build(work, text):
    """Carries out a Dockerfile. Raises ValueError for an instruction that is unknown here."""
    stages = {}
    stage = Stage(work)
    for number, (name, rest) in enumerate(instructions(text)):
        print(f"== {name} {rest}", flush=True)  # noqa: T201
        match name:
            case "FROM":
                image, _, alias = rest.partition(" AS ")
                make_base(work / "base", image)
                stage = stages[alias] = Stage(work / f"stage-{number}")
                shutil.rmtree(stage.root, ignore_errors=True)
                subprocess.run(["cp", "-a", "--reflink=auto", work / "base", stage.root], check=True)
            case "RUN":
                stage.run("sh", "-c", rest)
            case "COPY":
                *sources, target = rest.split()
                above = ROOT
                if sources[0].startswith("--from="):
                    above = stages[sources.pop(0).removeprefix("--from=")].root
                for source in sources:
                    stage.copy(above / source.lstrip("/"), target)
            case "ENV":
                variable, _, value = rest.partition("=")
                stage.environment[variable] = value.replace("$PATH", stage.environment["PATH"])
            case "USER":
                stage.user = rest
            case "WORKDIR":
                stage.directory = rest
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(rest)
            case "CMD":
                stage.command = json.loads(rest)
            case _:
                raise ValueError(f"{name}: not known here")
    return stage


def main():
    work = Path(sys.argv[1]).resolve()
    image = build(work, DOCKERFILE.read_text())
    image.copy(ROOT / "examples" / "sample-log", "/sample")
    started = [*image.entrypoint]
    assert "Usage: kafkafs" in image.run(*started, *image.command)
    assert image.run("id", "-u").strip() == image.user.partition(":")[0] != "0"
    assert image.run("sh", "-c", "command -v cc gcc || true") == ""
    assert "kernels: compiled" in image.run(*started, "--version").splitlines()
    assert image.run(*started, "cat", "/sample", "payments/0", "--isolation", "read_committed").splitlines() == [
        "order 1 paid",
        "order 2 paid",
        "order 5 paid",
    ]
    kafkafs = shlex.join(started)
    mounted = f"{kafkafs} mount --read-only /sample /mnt/kafka && cat /mnt/kafka/payments/0/messages.txt"
    if os.access("/dev/fuse", os.W_OK):
        assert "order 1 paid" in image.run("sh", "-c", f"{mounted}; {kafkafs} umount /mnt/kafka").splitlines()
    print(image.run(*started, "doctor", "--self"))  # noqa: T201


if __name__ == "__main__":
    main()

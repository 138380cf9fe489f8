"""`kafkafs mount` and `kafkafs umount`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from kafkafs.cli import say
from kafkafs.cli.progress import progress_bar
from kafkafs.mounting.mount import MountRequest
from kafkafs.mounting.mount import mount as start_mount
from kafkafs.mounting.mount_options import BadOption, parse_options
from kafkafs.mounting.mountpoint import MountError, absolute, unmount


@click.command()
@click.argument("logdir", type=click.Path(path_type=Path))
@click.argument("mnt", type=click.Path(path_type=Path))
@click.option("--read-only", is_flag=True, help="Change nothing in LOGDIR; take no lock. A running broker's is fine.")
@click.option("--create", is_flag=True, help="Make LOGDIR if there is none.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A broker's server.properties.")
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process, log to stderr, until unmounted or ^C.")
@click.option("-o", "options", multiple=True, metavar="OPT[,OPT…]", help="Mount options, see above.")
def mount(
    logdir: Path,
    mnt: Path,
    read_only: bool,
    create: bool,
    config: Path | None,
    foreground: bool,
    options: tuple[str, ...],
) -> None:
    """Serve the topics of LOGDIR as files at MNT, an empty directory.

    \b
    Mount options:
      isolation=read_committed   leave out aborted messages, stop at open transactions
      out_of_range=clamp         ranges that begin below the log start give what is left
      log=FILE                   where the log goes (else: syslog; with -f: stderr)
      cache_size=64M             memory for rendered messages
      config=FILE                as --config
      ro                         as --read-only
      uid=N, gid=N               who owns the files (else: you)
      allow_other, allow_root    others may look and append too (needs user_allow_other in fuse.conf)
      noauto_unmount             a killed kafkafs leaves its mountpoint behind
      noexec, nosuid, nodev, noatime, and the words of fstab

    In fstab:  LOGDIR MNT fuse.kafkafs ro,noauto,user 0 0

    Exit code: 0 the tree is there, 2 usage, 3 LOGDIR is held by another process, 4 it could not be mounted.
    """
    try:
        chosen = parse_options(options)
    except BadOption as error:
        raise click.UsageError(str(error)) from None
    if create and (read_only or chosen.read_only):
        raise click.UsageError("--create and --read-only contradict each other")
    config = config or chosen.config
    request = MountRequest(
        absolute(logdir),
        absolute(mnt),
        replace(
            chosen,
            read_only=read_only or chosen.read_only,
            create=create,
            config=absolute(config) if config else None,
            log=absolute(chosen.log) if chosen.log else None,
        ),
    )
    try:
        with progress_bar() as progress:
            start_mount(request, foreground=foreground, say=say, progress=progress)
    except MountError as error:
        _fail(error)


@click.command()
@click.argument("mnt", type=click.Path(path_type=Path))
def umount(mnt: Path) -> None:
    """Take away what `kafkafs mount` put at MNT, and wait until it has ended.

    Exit code: 0 it has gone, 4 it is busy (with whom, is said) or no kafkafs is mounted there.
    """
    try:
        unmount(absolute(mnt))
    except MountError as error:
        _fail(error)


def _fail(error: MountError) -> None:
    for line in str(error).splitlines():
        say(line)
    sys.exit(error.exit_code)

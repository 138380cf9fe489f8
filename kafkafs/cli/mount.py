"""`kafkafs mount` and `kafkafs umount`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafs.cli import say
from kafkafs.cli.progress_bar import progress_bar
from kafkafs.cli.shared_options import SCHEMAS, TIER, check_destination, tier_options
from kafkafs.cli.targets import LOGDIR
from kafkafs.mounting.mount import MountRequest
from kafkafs.mounting.mount import mount as start_mount
from kafkafs.mounting.mount_options import BadOption, parse_options
from kafkafs.mounting.mountpoint import MountError, absolute, unmount

if TYPE_CHECKING:
    from kafkafs.schemas.places import SchemaPlaces

# Shown after the options of `kafkafs mount --help`.
_MOUNT_OPTIONS = """
\b
Mount options:
  write, ro, config=FILE     the same as --write, --read-only, --server-properties
  rw                         no effect
  schemas=PATH or TOPIC=FILE[:MESSAGE], tier=PATH, tier_key=ID=FILE
                             the same as the options; the last two may be repeated
  isolation=read_committed   leave out aborted messages, stop at open transactions
                             (default: read_uncommitted)
  out_of_range=clamp         a range that begins below the log start shows the rest of it
                             (default: error)
  keys=off                   no index of keys: TOPIC/keys/KEY.txt reads the whole log, and
                             TOPIC/keys lists nothing (default: on)
  log=FILE                   the log of the mount (default: syslog if there is one; with -f:
                             stderr). A writable mount in the background says on stderr
                             where its log is, unless you name it
  cache_size=64M             memory for rendered messages, at least 4M
  latest_memory=512M         memory for the keys of a latest file at its open, at least 1M
  exact_below=1G             files whose exact size takes reading more than this, counted
                             uncompressed, open at once, with an estimated size until
                             somebody reads them to the end
  sizes=exact                no estimates: the first open of such a file reads all of it
                             (default: sizes=estimated)
  uid=N, gid=N               the owner of the files (default: you)
  modes=below                the kernel decides who may read: each file has the owner of
                             LOGDIR, and the permissions that the directories and .log
                             files behind it have in common; if their owners differ, only
                             root may read it (default: modes=all, everybody may read
                             everything). Not with uid=, gid=
  allow_other, allow_root    others may read and append too (needs user_allow_other in
                             fuse.conf, unless root mounts)
  noauto_unmount             a killed kafkafs leaves a dead mountpoint (default:
                             auto_unmount, which frees it)
  sync                       every write is on disk when it returns, as with O_SYNC
  noexec, nosuid, nodev, noatime, and the words of fstab(5) and mount(8)
"""


@click.command(epilog=_MOUNT_OPTIONS)
@LOGDIR
@click.argument("mnt", type=click.Path(path_type=Path))
@click.option(
    "--write",
    is_flag=True,
    help="Append too: take the lock of LOGDIR, recover what a crash left, run retention and compaction.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="The default: change nothing in LOGDIR and take no lock, so LOGDIR may be a running broker's.",
)
@click.option("--create", is_flag=True, help="Create LOGDIR if it does not exist or is empty; implies --write.")
@click.option(
    "--server-properties",
    "--config",
    "config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The broker's configuration; -o config=FILE is the same.",
)
@SCHEMAS
@click.option(
    "-f", "--foreground", is_flag=True, help="Serve in this process and log to stderr, until unmounted or ^C."
)
@click.option("-o", "options", multiple=True, metavar="OPT[,OPT…]", help="Mount options, as listed below.")
@TIER
def mount(
    logdir: Path,
    mnt: Path,
    write: bool,
    read_only: bool,
    create: bool,
    config: Path | None,
    schemas: SchemaPlaces,
    foreground: bool,
    options: tuple[str, ...],
) -> None:
    """Serve the topics of LOGDIR as files at MNT, an empty directory. Read-only unless --write is given.

    \b
    kafkafs mount /var/kafka /mnt/kafka                 read; LOGDIR may be a running broker's
    kafkafs mount --write /var/kafka /mnt/kafka         also append; the broker must be stopped
    kafkafs mount --write --create ./logs /mnt/logs     a new log directory of your own

    In fstab:  LOGDIR MNT fuse.kafkafs ro,noauto,user 0 0     (to append: write instead of ro)

    Exit code: 0 mounted, 2 wrong usage, 3 LOGDIR is held by another process, 4 it could not be mounted.
    """
    flags = [name for name, given in (("write", write), ("ro", read_only)) if given]
    try:
        chosen = parse_options((*flags, *options))
    except BadOption as error:
        raise click.UsageError(str(error)) from None
    if create and chosen.write is False:
        raise click.UsageError("--create and --read-only (-o ro) contradict each other")
    config = config or chosen.config
    places, keys = tier_options()
    request = MountRequest(
        absolute(logdir),
        absolute(mnt),
        replace(
            chosen,
            write=create or chosen.write,
            create=create,
            config=absolute(config) if config else None,
            schemas=(chosen.schemas | schemas).absolute(),
            log=absolute(chosen.log) if chosen.log else None,
            tier=tuple(place if "://" in place else str(absolute(Path(place))) for place in (*places, *chosen.tier)),
            tier_keys=tuple((name, absolute(file)) for name, file in (*keys.items(), *chosen.tier_keys)),
        ),
    )
    if create:
        check_destination(request.log_dir)
    if request.options.log is not None:
        check_destination(request.options.log, request.log_dir)
    try:
        with progress_bar() as progress:
            start_mount(request, foreground=foreground, say=say, progress=progress)
    except MountError as error:
        _fail(error)


@click.command()
@click.argument("mnt", type=click.Path(path_type=Path))
def umount(mnt: Path) -> None:
    """Unmount what `kafkafs mount` mounted at MNT, and wait until everything is on disk.

    A bind mount of it is unmounted alone. If MNT itself is also bound elsewhere, kafkafs keeps serving there: the
    command names the bind mounts and exits with code 4.

    Exit code: 0 unmounted; 4 it is busy (the processes that use it are named), kafkafs is not mounted there, or it was
    unmounted and its process goes on elsewhere or could not write everything to disk.
    """
    try:
        remaining = unmount(absolute(mnt))
    except MountError as error:
        _fail(error)
    else:
        if remaining is not None:
            say(remaining)


def _fail(error: MountError) -> None:
    for line in str(error).splitlines():
        say(line)
    sys.exit(error.exit_code)

"""`-o`: what mount(8) hands over, what we know, what nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafs.mounting.mount_options import BadOption, MountOptions, escaped, parse_options
from storage.types import Isolation


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], MountOptions()),
        (["ro"], MountOptions(read_only=True)),
        # what util-linux's mount and systemd hand over
        (["rw,noexec,nosuid,nodev"], MountOptions(libfuse=frozenset({"noexec", "nosuid", "nodev"}))),
        (["sync"], MountOptions(libfuse=frozenset({"sync"}))),
        (["rw,dev,suid,exec,auto,nouser,async,relatime,_netdev,x-systemd.automount,X-mount.mkdir=0755,comment=a b"],
         MountOptions()),
        (["defaults,user,nofail,ro,noatime"], MountOptions(read_only=True, libfuse=frozenset({"noatime"}))),
        (["isolation=read_committed,out_of_range=clamp"],
         MountOptions(isolation=Isolation.READ_COMMITTED, clamp=True)),
        (["isolation=read_committed", "isolation=read_uncommitted"], MountOptions()),
        (["log=/var/log/k.log,cache_size=64M"], MountOptions(log=Path("/var/log/k.log"), cache_bytes=64 << 20)),
        (["log=a\\,b\\\\c"], MountOptions(log=Path("a,b\\c"))),
        (["config=server.properties", "uid=0,gid=65534"],
         MountOptions(config=Path("server.properties"), uid=0, gid=65534)),
        (["allow_other"], MountOptions(libfuse=frozenset({"allow_other"}))),
        (["noauto_unmount"], MountOptions(auto_unmount=False)),
        ([",, ro ,"], MountOptions(read_only=True)),
        (["cache_size=1g"], MountOptions(cache_bytes=1 << 30)),
        (["cache_size=8388608"], MountOptions(cache_bytes=8388608)),
    ],
)  # fmt: skip
def test_known(texts: list[str], expected: MountOptions) -> None:
    assert parse_options(texts) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("isolaton=read_committed", "did you mean isolation"),
        ("allow_others", "did you mean allow_other"),
        ("nonsense", "there are isolation"),
        ("isolation", "needs a value"),
        ("isolation=", "needs a value"),
        ("isolation=serializable", "read_uncommitted or read_committed"),
        ("out_of_range=wrap", "clamp or error"),
        ("cache_size=lots", "bytes"),
        ("cache_size=-1", "bytes"),
        ("cache_size=1", "at least"),
        ("cache_size=٣M", "bytes"),
        ("uid=root", "a number"),
        ("uid=4294967295", "a number"),
        ("remount,ro", "umount"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        parse_options([text])


def test_escaped() -> None:
    name = "a,b\\c d"
    assert parse_options([f"log={escaped(name)}"]) == MountOptions(log=Path(name))

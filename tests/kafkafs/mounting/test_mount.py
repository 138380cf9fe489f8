"""What is said when this machine cannot mount at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kafkafs.mounting import mount
from kafkafs.mounting.mount_options import MountOptions
from kafkafs.mounting.mountpoint import FAILED, USAGE, MountError
from storage.progress import NoProgress


@pytest.fixture
def request_(tmp_path: Path) -> mount.MountRequest:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").touch()
    (tmp_path / "mnt").mkdir()
    return mount.MountRequest(tmp_path / "logs", tmp_path / "mnt", MountOptions(read_only=True))


def refused(request: mount.MountRequest) -> MountError:
    with pytest.raises(MountError) as caught:
        mount.mount(request, foreground=False, say=lambda _line: None, progress=NoProgress())
    return caught.value


def test_no_fuse_device(request_: mount.MountRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_DEVICE", "/dev/no-such-fuse")
    error = refused(request_)
    assert "modprobe fuse" in str(error)
    assert "--device" in str(error)
    assert error.exit_code == FAILED


def test_a_device_that_one_may_not_open(request_: mount.MountRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_DEVICE", "/dev/null")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "you may not open" in str(refused(request_))


def test_no_fusermount(request_: mount.MountRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_DEVICE", "/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "apt install fuse3" in str(refused(request_))


def test_a_bad_configuration(request_: mount.MountRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mount, "_DEVICE", "/dev/null")
    config = tmp_path / "server.properties"
    config.write_text("log.segment.bytes=much\n")
    request = mount.MountRequest(request_.log_dir, request_.mountpoint, MountOptions(config=config))
    error = refused(request)
    assert "log.segment.bytes" in str(error)
    assert error.exit_code == USAGE
    config.unlink()
    assert refused(request).exit_code == FAILED


def test_what_is_odd_about_a_configuration_is_said(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/elsewhere\nlog.segment.bites=1\nzookeeper.connect=x\n")
    lines: list[str] = []
    request = mount.MountRequest(tmp_path, tmp_path, MountOptions(config=config))
    mount._read_config(request, lines.append)
    assert any("log.segment.bytes" in line for line in lines)
    assert any("/elsewhere" in line for line in lines)
    assert not any("zookeeper" in line for line in lines)

"""The documents of the tests name what there is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
TEXT = (TESTS / "README.md").read_text()


def test_files_and_folders_exist() -> None:
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.sh|\.md|\.toml|/))`", TEXT))
    named |= set(re.findall(r"\btests/[\w./-]*[\w/]", TEXT))
    assert len(named) >= 40
    assert not [name for name in sorted(named) if not (TESTS / name).exists() and not (ROOT / name).exists()]


def test_variables_are_read_and_all_of_them_named() -> None:
    sources = [path for suffix in ("py", "sh") for path in TESTS.rglob(f"*.{suffix}") if path != Path(__file__)]
    read = {
        name
        for path in sources
        for name in re.findall(r"(?:environ(?:\.get\(|\[)[\"']|\$\{)(KAFKAFS_\w+)", path.read_text())
    }
    assert read == set(re.findall(r"KAFKAFS_[A-Z_]+", TEXT))

"""Every transcript's commands print what it says, and exit as it says."""

import pytest

from tests.kafkafs.cli.transcripts import DIRECTORY, run_section, sections
from tests.support.mounts import CANNOT_MOUNT

CASES = [
    pytest.param(
        head.words("needs"),
        section,
        id=f"{file.stem}: {section.title}",
        marks=[
            pytest.mark.leaves_damage(*section.words("leaves")),
            *([pytest.mark.golden] if section.words("fixture") else []),
        ],
    )
    for file in sorted(DIRECTORY.glob("*.txt"))
    for head, *others in [sections(file)]
    for section in others
]


@pytest.mark.parametrize(("modules", "section"), CASES)
def test_transcript(modules, section, tmp_path, monkeypatch):
    for module in modules:
        if module != "fuse":
            pytest.importorskip(module)
        elif CANNOT_MOUNT:
            pytest.skip(f"nothing can be mounted: {CANNOT_MOUNT}")
    monkeypatch.chdir(tmp_path)
    assert run_section(section, monkeypatch).rstrip("\n") == section.text.rstrip("\n")
    assert "[Errno" not in section.text  # of Python: a person reads the file and what happened

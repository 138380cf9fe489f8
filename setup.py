"""Writes the manual page kafkafs(1) before it is installed. Everything else about building is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithManPage(build_py):
    """Also writes the man page, which `data-files` of pyproject.toml installs."""

    def run(self):
        sys.path.insert(0, str(ROOT))
        from kafkafs.cli.man_page import man_page

        (ROOT / "kafkafs" / "cli" / "kafkafs.1").write_text(man_page())
        super().run()


setup(cmdclass={"build_py": BuildWithManPage})

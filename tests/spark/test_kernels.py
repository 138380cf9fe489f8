"""Jobs refuse to run with uncompiled kernels unless that is allowed."""

from __future__ import annotations

from importlib import import_module

import pytest

from kafkafs.spark.python_workers import UncompiledKernels, require_compiled


def test_uncompiled_kernels_are_refused_unless_allowed(monkeypatch):
    monkeypatch.setattr(import_module("storage.format.decode_kernel"), "__file__", "decode_kernel.py")
    with pytest.raises(UncompiledKernels, match=r"storage.format.decode_kernel is not compiled .*allowUncompiled"):
        require_compiled()
    require_compiled(allow_uncompiled=True)
    monkeypatch.undo()
    require_compiled()

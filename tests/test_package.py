"""The package itself: what it exports and how quickly it is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import wholestep as ws


def test_every_public_name_exists_and_is_documented():
    for name in ws.__all__:
        assert getattr(ws, name) is not None
    assert set(ws.__all__) <= set(dir(ws))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="wholestep has no attribute 'nonsense'"):
        ws.nonsense  # noqa: B018


def test_importing_loads_nothing_heavy():
    program = (
        "import sys, wholestep; print(sorted(m for m in sys.modules if m.split('.')[0] in ('numpy', 'rich', 'torch')))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"

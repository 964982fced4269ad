"""Tests of backends train one network on several devices."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _equal_starts(equal_starts: None) -> None:
    """What differs between two runs is the device, not the first weights."""

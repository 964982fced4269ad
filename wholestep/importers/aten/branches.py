"""Branches on data that torch itself takes, and that no number depends on: they would keep a module from export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules import transformer


@contextmanager
def without_checks() -> Iterator[None]:
    """Distributions do not look at their arguments, and transformers not at their masks, to see that they are causal.

    A mask that is not known to be causal is added as it is: the numbers are the same.
    """
    validates, detects = torch.distributions.Distribution._validate_args, transformer._detect_is_causal_mask
    torch.distributions.Distribution.set_default_validate_args(False)
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)
        transformer._detect_is_causal_mask = detects

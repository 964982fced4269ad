"""Descriptions that `to_config` gave and `from_config` reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wholestep.errors import OptionError, WholestepError


@contextmanager
def reading_config(kind: object) -> Iterator[None]:
    """What is wrong inside a description from a file is an error of ours, whatever it broke."""
    try:
        yield
    except WholestepError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise OptionError(f"the description of {kind!r} is not one that to_config() gave: {error}.") from None

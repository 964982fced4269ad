"""What `make train` promises."""

from __future__ import annotations

import io

from rich.console import Console

from examples.digits import main


def test_the_digits_reach_97_percent_and_say_so() -> None:
    said = io.StringIO()
    accuracy = main(console=Console(file=said, width=100))
    assert accuracy >= 0.97
    assert f"test accuracy: {accuracy:.2%} on 359 digits" in said.getvalue()

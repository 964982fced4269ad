"""`self.training`: not yes or no while a step is recorded, but what the entry point says when it runs."""

from __future__ import annotations

from typing import NoReturn

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError


class Mode:
    """What `module.training` is: `F.dropout(x, p, training=self.training)` takes it; it has no truth."""

    def __bool__(self) -> NoReturn:
        fail(
            UsageError,
            "whether a step trains belongs to the entry point (session.step trains, predict and evaluate do not), so "
            "self.training is neither True nor False while a model is recorded. Write both: "
            "ws.by_mode(in_training, otherwise).",
        )

    def __repr__(self) -> str:
        return "BY_ENTRY_POINT"


BY_ENTRY_POINT = Mode()

"""Modules of other libraries that have none here, `torch.nn.utils`: each of their names is taken or answered."""

from __future__ import annotations

from typing import Any

from wholestep.compat.names import answer_to, path_of, resolve_path
from wholestep.compiler.frontend.trace import locate
from wholestep.errors import HabitError


class Namespace:
    """What `ws.utils` is: not a module, but the names that people look for there."""

    __all__: tuple[str, ...] = ()

    def __init__(self, place: str, purpose: str) -> None:
        self._place, self._purpose = place, purpose

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self._place} has no attribute {name!r}")
        path = path_of(self._place, name)
        if path is not None:
            return resolve_path(path)
        text = answer_to(self._place, name) or self._purpose
        raise locate(HabitError(f"there is no `{self._place}.{name}`: {text}."))

    def __repr__(self) -> str:
        return f"<{self._place}: {self._purpose}>"


UTILS = Namespace("ws.utils", "batches are ws.DataLoader, files and splits in ws.data, checkpoints ws.save_checkpoint")
NN_UTILS = Namespace("ws.nn.utils", "gradients are clipped by ws.fit(..., clip_norm=1.0); layers are in ws.nn")
RNN_UTILS = Namespace(
    "ws.nn.utils", NN_UTILS._purpose
)  # torch.nn.utils.rnn, whose names are those of torch.nn.utils too

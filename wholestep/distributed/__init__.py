"""Several ranks that train one model together: launching, transports, and what they cost."""

from pathlib import Path
from typing import Any

from wholestep.lazy import interop


def __getattr__(name: str) -> Any:
    """Raise an error that says what to write instead of a function of `torch.distributed`."""
    if name.startswith("_") or (Path(__file__).parent / f"{name}.py").exists():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wholestep.compiler.frontend.trace import locate
    from wholestep.errors import HabitError

    raise locate(HabitError(f"there is no `ws.distributed.{name}`: {interop.suggestion('ws', 'distributed')}."))

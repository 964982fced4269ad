"""Every error a user can meet.  Each also derives from the built-in that a user would catch."""

from __future__ import annotations

from typing import Any


class WholestepError(Exception):
    """Base of all errors raised by Wholestep."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument; ours are sentences.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class ShapeError(WholestepError, ValueError):
    """Shapes that do not fit together."""


class DTypeError(WholestepError, TypeError):
    """Dtypes that do not fit together."""


class GraphError(WholestepError, ValueError):
    """A program that is not well formed: duplicate names, foreign tensors, missing outputs."""


class UnsupportedOpError(WholestepError, NotImplementedError):
    """An op of another library's network that cannot be expressed here; the text names it and where it stands."""


class GradientError(WholestepError, ValueError):
    """A gradient that was asked for and does not exist."""


class UsageError(WholestepError, TypeError):
    """A call in the style of another framework, or arguments that exclude each other."""


class HabitError(UsageError, AttributeError):
    """An attribute that another framework's tensors or modules have; the text says what to write here."""


class HabitImportError(WholestepError, ImportError):
    """A name that another library has, imported from here; the text says what to write."""


class OptionError(WholestepError, ValueError):
    """An option or hyper-parameter outside its range."""


class UnknownNameError(WholestepError, KeyError):
    """A name that the graph, the session or the state does not know."""


class InputError(WholestepError, ValueError):
    """An array given to a session that does not fit its input."""


class PlanError(WholestepError, ValueError):
    """A plan that is damaged, of another version, or made for another graph."""


class VerificationError(PlanError):
    """A plan with other results than its graph: a bug of the compiler, found before the first step."""


class CheckpointError(WholestepError, OSError):
    """A file of weights or a checkpoint that cannot be written, or is missing, damaged or not ours.

    `history` is that of a run that was trained to its end and whose last checkpoint could not be written.
    """

    history: Any = None


class TrainingInterrupted(SystemExit):
    """Ctrl-C, SIGTERM or SIGHUP ended a run that keeps checkpoints: the step was finished and saved.

    `code` is 128 + signal.
    """


class CompilerError(WholestepError, RuntimeError):
    """No C compiler, or a compiler that refused our source."""


class DeviceError(WholestepError, RuntimeError):
    """A device that failed, or refused a command."""


class WorkerError(WholestepError, RuntimeError):
    """A rank that was lost, or did not respond in time: `rank`, and `step`, its last step, if known."""

    def __init__(self, text: str, rank: int | None = None, step: int | None = None) -> None:
        super().__init__(text)
        self.rank, self.step = rank, step


class OutOfMemoryError(WholestepError, MemoryError):
    """More memory than is available; nothing was changed.  `bytes` is the size of the allocation.

    For memory of a device, `free` of its bytes were free, and `where` names it.
    """

    def __init__(
        self, text: str, bytes: int, advice: str = "", *, free: int | None = None, where: str | None = None
    ) -> None:
        super().__init__(f"{text} {advice}".rstrip())
        self.bytes, self.what, self.free, self.where = bytes, text, free, where


class LimitError(OutOfMemoryError):
    """No plan of a step takes as few bytes as `memory=` allows: `bytes` is the least, `limit` what is allowed."""

    def __init__(self, text: str, bytes: int, advice: str = "", *, limit: int) -> None:
        super().__init__(text, bytes, advice)
        self.limit = limit


class CacheError(WholestepError, OSError):
    """Compiled code could be stored neither in the cache folder nor in a temporary one."""


class AccumulationError(WholestepError):
    """Base of the errors of gradient accumulation."""


class ShapeMismatch(AccumulationError, ValueError):  # noqa: N818
    """A gradient of another size than its buffer: `name` ("" for a buffer without one), `expected`, `got`."""

    def __init__(self, name: str, expected: tuple[int, ...], got: tuple[int, ...]) -> None:
        of = f" of {name!r}" if name else ""
        super().__init__(f"the gradient{of} has shape {expected}; received {got}. Nothing was accumulated.")
        self.name, self.expected, self.got = name, expected, got


class NoGradients(AccumulationError, LookupError):  # noqa: N818
    """A gradient that is not there: nothing registered, nothing accumulated, or an unknown name."""


class AccumulatorFull(AccumulationError, RuntimeError):  # noqa: N818
    """More micro-batches than an update takes: `steps`."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"all {steps} micro-batches of an update are there: take get_gradients() and reset() first.")
        self.steps = steps


class NonFiniteError(WholestepError, FloatingPointError):
    """A gradient that is not finite, in a session built with nonfinite="raise"."""


class TrainingWarning(UserWarning):
    """Training that runs, but probably not as intended; the text says what to write."""

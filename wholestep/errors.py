"""The errors and warnings of Wholestep.  Each error also derives from the built-in class that a user would catch."""

from __future__ import annotations

from typing import Any


class WholestepError(Exception):
    """The base class of all errors raised by Wholestep."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument, but our texts are sentences.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class ShapeError(WholestepError, ValueError):
    """Shapes that do not match."""


class DTypeError(WholestepError, TypeError):
    """Dtypes that cannot be combined."""


class GraphError(WholestepError, ValueError):
    """An invalid program: duplicate names, tensors of another graph, missing outputs."""


class UnsupportedOpError(WholestepError, NotImplementedError):
    """An op of an imported network that cannot be expressed; the text names the op and its location."""


class GradientError(WholestepError, ValueError):
    """A gradient that does not exist."""


class UsageError(WholestepError, TypeError):
    """A call in the style of another framework, or arguments that exclude each other."""


class HabitError(UsageError, AttributeError):
    """An attribute that tensors or modules of another framework have; the text says what to write here."""


class HabitImportError(WholestepError, ImportError):
    """An imported name that another library has; the text says what to write here."""


class OptionError(WholestepError, ValueError):
    """An option or hyper-parameter outside its range."""


class UnknownNameError(WholestepError, KeyError):
    """A name that does not exist in the graph, the session or the state."""


class InputError(WholestepError, ValueError):
    """An array given to a session that does not fit its input."""


class PlanError(WholestepError, ValueError):
    """A plan that is damaged, of another version, or made for another graph."""


class VerificationError(PlanError):
    """A plan and its graph have different results: a bug of the compiler, detected before the first step."""


class CheckpointError(WholestepError, OSError):
    """A weights file or a checkpoint that cannot be written, is missing, is damaged or has another format.

    `history` is the history of a run that was trained to its end and whose last checkpoint could not be written.
    """

    history: Any = None


class TrainingInterrupted(SystemExit):
    """Ctrl-C, SIGTERM or SIGHUP ended a run that keeps checkpoints: the step was finished and saved.

    `code` is 128 + signal.
    """


class CompilerError(WholestepError, RuntimeError):
    """No C compiler was found, or it rejected our source."""


class DeviceError(WholestepError, RuntimeError):
    """A device that failed, or refused a command."""


class WorkerError(WholestepError, RuntimeError):
    """A rank that was lost, or did not respond in time: `rank`, and `step`, its last step, if known; or a process of a
    loader.
    """

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
    """A memory limit that no plan of a step satisfies: `bytes` is the least possible, `limit` the allowed number."""

    def __init__(self, text: str, bytes: int, advice: str = "", *, limit: int) -> None:
        super().__init__(text, bytes, advice)
        self.limit = limit


class CacheError(WholestepError, OSError):
    """Compiled code could be stored neither in the cache folder nor in a temporary one."""


class AccumulationError(WholestepError):
    """The base class of the errors of gradient accumulation."""


class ShapeMismatch(AccumulationError, ValueError):  # noqa: N818
    """A gradient whose size differs from its buffer's: `name` ("" for a buffer without one), `expected`, `got`."""

    def __init__(self, name: str, expected: tuple[int, ...], got: tuple[int, ...]) -> None:
        of = f" of {name!r}" if name else ""
        super().__init__(f"the gradient{of} has shape {expected}; received {got}. Nothing was accumulated.")
        self.name, self.expected, self.got = name, expected, got


class NoGradients(AccumulationError, LookupError):  # noqa: N818
    """A gradient that does not exist: nothing was registered or accumulated, or the name is unknown."""


class AccumulatorFull(AccumulationError, RuntimeError):  # noqa: N818
    """A parameter received more micro-batches than the `steps` of an update."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"all {steps} micro-batches of an update are there: take get_gradients() and reset() first.")
        self.steps = steps


class NonFiniteError(WholestepError, FloatingPointError):
    """A gradient that is not finite, in a session built with nonfinite="raise"."""


class TrainingWarning(UserWarning):
    """Warns that training runs, but probably not as intended; the text says what to write.

    `code` is the code of the linter's rule (`ws.lint`), if a rule covers this error.
    """

    def __init__(self, text: str = "", code: str = "") -> None:
        super().__init__(text)
        self.code = code

"""Every error a user can meet.  Each also derives from the built-in that a user would catch."""

from __future__ import annotations


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


class GradientError(WholestepError, ValueError):
    """A gradient that was asked for and does not exist."""


class UsageError(WholestepError, TypeError):
    """A call that looks like another framework's, or arguments that exclude each other."""


class HabitError(UsageError, AttributeError):
    """An attribute that another framework's tensors or modules have; the text says what to write here."""


class OptionError(WholestepError, ValueError):
    """An option or hyper-parameter outside its range."""


class UnknownNameError(WholestepError, KeyError):
    """A name that the graph, the session or the state does not know."""


class InputError(WholestepError, ValueError):
    """An array given to a session that does not fit its input."""


class PlanError(WholestepError, ValueError):
    """A plan that is damaged, of another version, or made for another graph."""


class VerificationError(PlanError):
    """A plan that does not compute what its graph means: a bug of the compiler, found before the first step."""


class CompilerError(WholestepError, RuntimeError):
    """No C compiler, or a compiler that refused our source."""

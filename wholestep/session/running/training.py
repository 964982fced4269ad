"""Training over whole data sets: many steps per native call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wholestep.compiler.backend import StepRange
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import UsageError
from wholestep.session.inspect.inspect import Inspect
from wholestep.session.metrics import Measurements
from wholestep.session.programs import Programs
from wholestep.session.running.slices import Look, RunOptions, Unchanged, prepare_run, run_in_slices


class Training:
    """The part of a session that makes epochs."""

    def __init__(self, programs: Programs, measurements: Measurements, inspect: Inspect) -> None:
        self._programs, self._measurements, self._inspect = programs, measurements, inspect

    def run(
        self,
        given: Mapping[str, object] | None = None,
        /,
        *more: object,
        epochs: int = 1,
        shuffle: bool = True,
        start: int = 0,
        batch_size: int | None = None,
        **arrays: object,
    ) -> AnyArray:
        """Epochs over whole data sets; returns the loss of every update.

        Batches are gathered inside the native loop.  The order of an epoch is a function of (seed, epochs done);
        `start` skips that many updates of the first epoch, to go on where another run stopped.
        """
        if given is not None:
            arrays = {**self._programs.by_name("run", given, more), **arrays}
        _refuse_typos(arrays, [i.name for i in self._programs.main.inputs.all])
        self._check_calls(arrays, epochs, batch_size)
        slices = self.run_in_slices(arrays, epochs=epochs, shuffle=shuffle, start=start, batch_size=batch_size)
        found = [part.losses for part in slices]
        return np.concatenate(found) if found else np.zeros(0)

    def _check_calls(self, arrays: Mapping[str, object], epochs: int, batch_size: int | None) -> None:
        """A schedule under torch's names counts updates here: where epochs were meant, it ends early."""
        programs = self._programs
        called = {t: s for t, s in programs.recipe.schedules.items() if s.unit == "call"}
        if not called or not (rows := programs.need("a schedule").definition.rows_in(arrays)):
            return
        from wholestep.schedules.horizon_checks import unlike

        batch, most = rows
        updates = epochs * -(-batch // (batch_size or most))
        for target, schedule in called.items():
            if odd := unlike(programs.scalars.schedule(target, schedule), updates, "step"):
                warnings.warn(f"the schedule of {target}, {odd}", stacklevel=4)

    def prepare_to_run(self, arrays: Mapping[str, object], batch_size: int | None, unchanged: Unchanged) -> None:
        """What runs with this `unchanged` would otherwise do first: their time is that of steps."""
        prepare_run(self._programs.main, arrays, batch_size, unchanged)

    def run_in_slices(
        self,
        arrays: Mapping[str, object],
        *,
        epochs: int = 1,
        shuffle: bool = True,
        start: int = 0,
        batch_size: int | None = None,
        every: int | None = None,
        order_seed: int | None = None,
        most: int | None = None,
        pause: int | None = None,
        unchanged: Unchanged | None = None,
    ) -> Iterator[StepRange]:
        """`run`, handing over the losses of every slice as it is done: about 50 ms of steps, `every` of them at most.

        `order_seed` keys the order of the rows; None: the session's own seed does.  An epoch has `most` updates, and no
        slice goes past a multiple of `pause`.  Runs with the same `unchanged` find arrays as they were.  Between two
        slices the session may be read, saved, evaluated; whoever stops iterating stops training there.

        Example: `for part in session.run_in_slices({"x": X, "labels": Y}): print(part.losses[-1])`.
        """
        programs, reset = self._programs, self._measurements.reset_metrics
        programs.held = {}  # their memory is where batches are gathered
        with programs.turns:
            programs.take_turn()
        main, seed = programs.main, programs.where.seed if order_seed is None else order_seed

        def begin_slice() -> None:
            if programs.state.turn is not programs.turn:
                programs.take_turn()
            if programs.main is not main:
                raise UsageError("the session was compiled anew between two slices of a run; start the run again.")

        raises = programs.raises
        options = RunOptions(
            epochs,
            shuffle,
            start,
            batch_size,
            reset,
            begin_slice,
            raises,
            every,
            seed,
            most,
            pause,
            unchanged=unchanged,
        )
        if programs.observer is not None:
            every_look = max(1, getattr(programs.observer, "every", 1))
            options = replace(options, look=Look(every_look, self._inspect.observe))
        return run_in_slices(main, programs.state, arrays, options)


_RUN_OPTIONS = ("epochs", "shuffle", "start", "batch_size")


def _refuse_typos(arrays: Mapping[str, object], inputs: Sequence[str]) -> None:
    """An option of `run` that is misspelt would be taken for an input."""
    from difflib import get_close_matches  # a start that makes single steps does without

    for name in arrays:
        close = get_close_matches(name, _RUN_OPTIONS, 1, 0.7)
        if name not in inputs and close:
            raise UsageError(f"run has no option {name!r}; did you mean {close[0]}={arrays[name]!r}?")

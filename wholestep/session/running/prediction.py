"""`model.predict`: a module on arrays, by cached inference sessions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.devices import device_named
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import DType, Shape, int32, letter_of, symbols_of
from wholestep.compiler.runtime.arrays import AnyArray, as_array
from wholestep.data.sequences.ragged import as_ragged
from wholestep.errors import InputError, OptionError, ShapeError, UsageError, WholestepError
from wholestep.nn.layers.table_encoding import encode_inputs
from wholestep.nn.module.module import Module
from wholestep.steps.evaluate import forward_only
from wholestep.steps.module import Inputs, forward_graph
from wholestep.steps.states import state_with_numbers, structure

if TYPE_CHECKING:
    from wholestep.session.session import Session


@dataclass(frozen=True)
class Predictor:
    """A session that computes a model's outputs, and how its forward returns them."""

    session: Session
    form: Any  # None: one tensor, or a dict; else nested tuples of output names, as `forward` returns them
    fixed: frozenset[str] = frozenset()  # inputs that are not divided into batches

    def __call__(self, arrays: Mapping[str, AnyArray], rows: int, at_once: int) -> Any:
        parts = [
            self.session.step(
                {name: a if name in self.fixed else a[start : start + at_once] for name, a in arrays.items()}
            ).outputs
            for start in range(0, max(rows, 1), at_once)
        ]
        outputs = parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}
        if self.form is not None:
            return _fill_outputs(self.form, outputs)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs


@dataclass
class Predictors:
    """The cached predictors of a model, which live as long as the model."""

    by_key: dict[object, Predictor]
    independent: dict[object, bool]  # are rows independent of each other?


def predict(model: Module, inputs: Sequence[object], named: Mapping[str, object], batch_size: int, device: str) -> Any:
    """Run a model on arrays on a device: `batch_size` rows at a time, or all at once if rows depend on each other."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        fail(OptionError, f"batch_size={batch_size!r}: expected an integer of rows, at least 1.")
    if len(inputs) == 1 and not named and (ragged := as_ragged(inputs[0])) is not None:
        return ragged.unpack(predict(model, (), ragged.table.inputs, batch_size, device))
    arrays, symbols, specs = read_inputs(model, inputs, named)
    if [*symbols] == [0]:
        return _of_no_rows(model, arrays, specs, device)
    predictors: Predictors = model.__dict__.setdefault("_predictors", Predictors({}, {}))
    rows = next(iter(symbols))
    form = (tuple(specs.items()), structure(model))
    if rows > batch_size and form not in predictors.independent:
        predictors.independent[form] = len(symbols) == 1 and _has_independent_rows(model, specs)
    # At most `batch_size` rows at once if rows are independent, else all of them.
    at_once = batch_size if rows > batch_size and predictors.independent[form] else max(*symbols, 1)
    capacity = {symbol: room(min(count, at_once)) for count, symbol in symbols.items()}
    key = (form, tuple(capacity.items()), device_named(device).name)
    if key not in predictors.by_key:
        try:
            predictors.by_key[key] = _predictor(model, specs, capacity, device)
        except ShapeError as error:
            if len(symbols) == 1:
                raise _with_advice(error, model, arrays) from None
            counts = {name: len(a) for name, a in arrays.items()}
            raise ShapeError(f"the inputs have different numbers of rows, {counts}, and so: {error}") from None
    return predictors.by_key[key](arrays, rows, at_once)


def _with_advice(error: ShapeError, model: Module, arrays: Mapping[str, AnyArray]) -> ShapeError:
    """The error, with the hint `x[None]` if the arrays are a single example without a batch axis."""
    specs = {name: spec_of(model, a[None], "batch") for name, a in arrays.items()}
    try:
        forward_graph(model, as_one(specs))
    except WholestepError:
        return error
    text, mark, line = str(error).partition("\n  at ")
    return ShapeError(f"{text} For one example, a batch of one, write {next(iter(arrays))}[None].{mark}{line}")


def _of_no_rows(model: Module, arrays: Mapping[str, AnyArray], specs: dict[str, Spec], device: str) -> Any:
    """The outputs for an empty array: shaped as for one row, with the row removed."""
    if not _has_independent_rows(model, specs):
        fail(InputError, f"{type(model).__name__} has no output row for each input row; give at least one row.")
    one = {name: np.zeros((1, *a.shape[1:]), a.dtype) for name, a in arrays.items()}
    return _without_rows(predict(model, (), one, 1, device))


def _without_rows(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return {name: _without_rows(out) for name, out in outputs.items()}
    if isinstance(outputs, tuple | list):
        cut = [_without_rows(out) for out in outputs]
        return type(outputs)(*cut) if hasattr(outputs, "_fields") else type(outputs)(cut)
    return outputs[:0]


def read_inputs(
    model: Module, inputs: Sequence[object], named: Mapping[str, object]
) -> tuple[dict[str, AnyArray], dict[int, str], dict[str, Spec]]:
    """The inputs of a model: arrays by name, the dimension of each number of rows, and their types."""
    arrays = _arrays(model, *encode_inputs(model, tuple(inputs), named))
    fixed = _fixed_inputs(model)
    symbols = _symbols({name: a for name, a in arrays.items() if name not in fixed})
    return (
        arrays,
        symbols,
        {name: spec_of(model, a, None if name in fixed else symbols[len(a)]) for name, a in arrays.items()},
    )


def _fixed_inputs(model: Module) -> frozenset[str]:
    """The inputs without a row axis."""
    return frozenset() if model.fixed_batch else model.fixed_inputs


def room(rows: int) -> int:
    """The next power of two, so that similar batch sizes share a program."""
    return 1 << max(rows - 1, 0).bit_length()


def sizes_of(graph: Graph, capacity: Mapping[str, int]) -> dict[str, int]:
    """The capacity of the symbols of a graph's inputs."""
    used = {s for t in graph.inputs.values() for s in symbols_of(t.shape)}
    return {s: n for s, n in capacity.items() if s in used}


def _has_independent_rows(model: Module, specs: dict[str, Spec]) -> bool:
    from wholestep.steps.separable_loss import what_mixes_rows  # imported here because most predictions have few rows

    graph, _ = forward_graph(model, as_one(specs))
    return not what_mixes_rows(forward_only(graph))


def as_one(specs: dict[str, Spec]) -> Inputs:
    """A single input itself; several inputs as a dict by name."""
    return specs["x"] if list(specs) == ["x"] else specs


def _predictor(model: Module, specs: dict[str, Spec], capacity: dict[str, int], device: str) -> Predictor:
    from wholestep.session.building.build import build_inference_session

    state_with_numbers(model)
    graph, out = forward_graph(model, as_one(specs))
    form = _form("output", out) if isinstance(out, tuple | list) else None
    session = build_inference_session(graph, capacity=sizes_of(graph, capacity), device=device)
    return Predictor(session, form, _fixed_inputs(model))


def _form(name: str, out: Any) -> Any:
    """The output names of `_numbered` in the structure of nested tuples that `forward` returned."""
    items = [
        _form(f"{name}{i}.", item) if isinstance(item, tuple | list) else f"{name}{i}" for i, item in enumerate(out)
    ]
    return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)


def _fill_outputs(form: Any, outputs: Mapping[str, AnyArray]) -> Any:
    if isinstance(form, str):
        return outputs[form]
    items = [_fill_outputs(item, outputs) for item in form]
    return type(form)(*items) if hasattr(form, "_fields") else type(form)(items)


def _arrays(model: Module, inputs: Sequence[object], named: Mapping[str, object]) -> dict[str, AnyArray]:
    first = inputs[0] if len(inputs) == 1 and not named else None
    if isinstance(first, Mapping):
        inputs, named = (), first  # several inputs by name, as `fit` takes them
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            names = names[: list(parameters).index(p)] + [f"{p.name}{i}" for i in range(len(inputs))]
    if len(inputs) == 1 and not named:
        names = ["x"]
    if len(inputs) > len(names) or not (inputs or named):
        fail(UsageError, f"{type(model).__name__} takes {', '.join(names)}; received {len(inputs)} arrays.")
    values = {**dict(zip(names, inputs)), **named}
    return {name: as_array(value, f"the input {name!r}") for name, value in values.items()}


def spec_of(model: Module, array: AnyArray, rows: str | None) -> Spec:
    """The type of an input: a symbolic row axis, the other axes fixed; floats in the model's dtype."""
    whole = model.fixed_batch or rows is None
    shape: Shape | tuple[object, ...] = array.shape if whole else (rows, *array.shape[1:])
    if letter_of(array.dtype) == "f":
        return Spec(shape, float_dtype_of(model))
    return Spec(shape, int32 if letter_of(array.dtype) in "iu" else array.dtype.name)


def float_dtype_of(model: Module) -> DType | str:
    """The dtype of a model's parameters; float32 without parameters."""
    return next((p.dtype for p in model.parameters().values()), "float32")


def _symbols(arrays: Mapping[str, AnyArray]) -> dict[int, str]:
    """A dimension for each number of rows: "batch" for the first input; nodes and edges have two dimensions."""
    symbols: dict[int, str] = {}
    for name, a in arrays.items():
        if a.ndim == 0:
            fail(ShapeError, "a model takes batches: give an array whose first axis counts examples, x[None].")
        symbols.setdefault(len(a), f"rows_of_{name}" if symbols else "batch")
    return symbols

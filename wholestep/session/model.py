"""A module between its graph and its numbers: what `model.predict` and `build_session(model)` share."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep import losses
from wholestep.compiler.frontend.graph import Graph, recording
from wholestep.compiler.frontend.initializers import materialize
from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Shape, int32, symbols_of
from wholestep.compiler.runtime.arrays import AnyArray, as_array
from wholestep.compiler.runtime.state import State
from wholestep.errors import OptionError, ShapeError, UsageError
from wholestep.losses.table import LossFunction
from wholestep.nn.module import Module
from wholestep.nn.trace import trace_of
from wholestep.session.source import forward_only, share_state, state_of

if TYPE_CHECKING:
    from wholestep.session.session import Session

Inputs = Spec | Mapping[str, Spec]


# -- numbers -----------------------------------------------------------------------------------------------------


def has_numbers(model: Module) -> bool:
    """Has the model been built, loaded or read?"""
    return any(owned.slot is not None for owned in model.named_arrays().values())


def structure(model: Module) -> tuple[int, ...]:
    """What a model is made of, by identity: a session that was compiled for other parts is not used."""
    parts = [part for _, part in model.named_modules()]
    return (*map(id, parts), *(id(owned) for part in parts for owned in part.__dict__.get("_owned", {}).values()))


def state_with_numbers(model: Module, seed: int = 0) -> State:
    """The model's state, with the first value of everything it lacks drawn from (seed, name)."""
    arrays, state = model.named_arrays(), state_of(model)

    def first(name: str) -> AnyArray:
        owned = arrays[name]
        return materialize(owned.init, owned.shape, owned.dtype, seed, name)

    state.add({name: owned.type for name, owned in arrays.items()}, first, arrays)
    return state


def numbers(model: Module) -> dict[str, AnyArray]:
    """Copies of all parameters and buffers."""
    state = state_with_numbers(model)
    return {name: state.get(name) for name in model.named_arrays()}


# -- graphs ------------------------------------------------------------------------------------------------------


def record_inputs(graph: Graph, inputs: Inputs) -> dict[str, Tensor]:
    """The inputs of a model in a graph: `x` for a single one."""
    specs = dict(inputs) if isinstance(inputs, Mapping) else {"x": inputs}
    for name, spec in specs.items():
        if not isinstance(spec, Spec):
            fail(UsageError, f"the input {name!r} needs a ws.Spec(shape, dtype); received {spec!r}.")
    return {name: graph.input(name, spec.shape, spec.dtype) for name, spec in specs.items()}


def record_outputs(model: Module, inputs: Inputs, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's outputs by name: `output` for a single one, `output0` and so on for several."""
    return _named_outputs(model, _called(model, inputs, tensors))


def _called(model: Module, inputs: Inputs, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(inputs, Spec):
        return model(*tensors.values())
    known = inspect.signature(model.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in known):  # forward(self, *inputs): in their order
        named = {p.name for p in known if p.kind is p.KEYWORD_ONLY} & {*tensors}
        return model(*(t for n, t in tensors.items() if n not in named), **{n: tensors[n] for n in named})
    _need_arguments(model, tensors)
    return model(**tensors)


def _named_outputs(model: Module, out: Any) -> dict[str, Tensor]:
    if isinstance(out, Tensor):
        return {"output": out}
    if isinstance(out, Mapping):
        return dict(out)
    if not isinstance(out, Sequence) or not out:
        kind = type(model).__name__
        fail(UsageError, f"{kind}.forward must return a tensor, or a tuple or dict of tensors; it returned {out!r}.")
    return dict(_numbered("output", out))


def _numbered(name: str, outputs: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """`output0`, `output1`; of a tuple inside, as a recurrent layer's states, `output1.0`, `output1.1`."""
    for i, out in enumerate(outputs):
        own = f"{name}{i}"
        if isinstance(out, tuple | list):
            yield from _numbered(f"{own}.", out)
        else:
            yield own, out


def _need_arguments(model: Module, named: Mapping[str, object]) -> None:
    """Named inputs are the arguments of `forward`."""
    known = inspect.signature(model.forward).parameters.values()
    takes = [p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needs = [p.name for p in known if p.name in takes and p.default is p.empty]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in known)
    if any(n not in named for n in needs) or (not open_ended and any(n not in takes for n in named)):
        fail(
            UsageError,
            f"{type(model).__name__}.forward takes {', '.join(takes) or 'nothing'}; the inputs are called "
            f"{', '.join(named)}. Name them alike.",
        )


def forward_graph(model: Module, inputs: Inputs) -> tuple[Graph, Any]:
    """The graph that computes a model's outputs, over the model's own state, and what its forward returned."""
    with recording(Graph()) as graph:
        trace_of(graph, model)
        out = _called(model, inputs, record_inputs(graph, inputs))
        graph.set_outputs(_named_outputs(model, out))
    share_state(graph, model)
    return graph, out


def training_graph(model: Module, inputs: Inputs | None, targets: Inputs | None, loss: Any) -> Graph:
    """The graph of a model with its loss: inputs `x` and `labels`, or the names of the dicts."""
    if inputs is None or loss is None:
        missing = 'inputs=ws.Spec(("batch", 784))' if inputs is None else 'loss="cross_entropy"'
        raise UsageError(f"a session over a model needs to know its inputs, targets and loss; add {missing}.")
    with recording(Graph()) as graph:
        graph.recorded_by = loss if callable(loss) else None  # modules that it calls have the names of its variables
        trace_of(graph, model)
        outputs = record_outputs(model, inputs, record_inputs(graph, inputs))
        aims = record_inputs(graph, {"labels": targets} if isinstance(targets, Spec) else targets or {})
        graph.set_outputs({"loss": _loss(loss, outputs, aims), **outputs})
    share_state(graph, model)
    return graph


def _loss(loss: Any, outputs: Mapping[str, Tensor], aims: dict[str, Tensor]) -> Tensor:
    """A loss by name or function; a dict has one for each output, whose target has the output's name."""
    weight = {"sample_weight": aims.pop("sample_weight")} if "sample_weight" in aims else {}
    if isinstance(loss, Mapping) and ("kind" not in loss or "kind" in outputs):  # else the to_config() of one loss
        for name in loss:
            if name not in outputs or name not in aims:
                known = f"outputs: {', '.join(outputs)}; targets: {', '.join(aims) or 'none'}"
                raise UsageError(f"loss[{name!r}] needs an output and a target of that name; there are {known}.")
        functions = {name: _weighing(losses.get(one), weight) for name, one in loss.items()}
        first, *rest = (one(outputs[name], aims[name], **weight) for name, one in functions.items())
        return sum(rest, start=first)
    function = _weighing(losses.get(loss), weight)
    if len(outputs) == 1 and len(aims) <= 1:
        return function(*outputs.values(), *aims.values(), **weight)
    if isinstance(function, losses.Loss):
        raise UsageError(
            f"{function.kind} is of one output and one target; there are the outputs {', '.join(outputs)} and the "
            f"targets {', '.join(aims) or 'none'}. Give a loss for each, loss={{{next(iter(outputs))!r}: "
            f"{function.kind!r}, ...}}, or a function of both dicts."
        )
    return function(dict(outputs), dict(aims), **weight)


def _weighing(function: LossFunction, weight: Mapping[str, Tensor]) -> LossFunction:
    """A loss; where rows have weights, one that takes them: a loss of the user's own says itself what they mean."""
    if not weight or isinstance(function, losses.Loss):
        return function
    known = inspect.signature(function).parameters.values()
    if not any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in known):
        name = getattr(function, "__name__", type(function).__name__)
        raise UsageError(
            f"the data has sample weights, and the loss {name} does not take them: give it a third argument, "
            f"def {name}(output, target, sample_weight), or leave the weights out."
        )
    return function


def only_module(graph: Graph) -> Module | None:
    """The module of a step, None where it has none; an error names them where there are several."""
    roots = trace_of(graph).roots()
    if len(roots) > 1:
        one = next(iter(roots))
        raise UsageError(
            f"this step has several modules: {', '.join(roots)}. Say which is to predict: session.predict({one}, ...) "
            f"or {one}.predict(...)."
        )
    return next(iter(roots.values()), None)


# -- predicting --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictor:
    """A session that computes a model's outputs, and how its forward returns them."""

    session: Session
    form: Any  # None: one tensor, or a dict; else the tuples that `forward` gave, with a name for each tensor

    def __call__(self, arrays: Mapping[str, AnyArray], rows: int, at_once: int) -> Any:
        parts = [
            self.session.step({name: a[start : start + at_once] for name, a in arrays.items()}).outputs
            for start in range(0, max(rows, 1), at_once)
        ]
        outputs = parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}
        if self.form is not None:
            return _filled(self.form, outputs)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs


@dataclass
class Predictors:
    """What a model has compiled to predict with.  They end with the model."""

    known: dict[object, Predictor]
    apart: dict[object, bool]  # may rows be taken part by part?


def predict(model: Module, inputs: Sequence[object], named: Mapping[str, object], batch_size: int) -> Any:
    """Run a model on arrays: `batch_size` rows at a time, all at once where rows depend on each other."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        fail(OptionError, f"batch_size={batch_size!r}: expected a whole number of rows, at least 1.")
    arrays = _arrays(model, inputs, named)
    symbols = _symbols(arrays)
    specs = {name: _spec(model, a, symbols[len(a)]) for name, a in arrays.items()}
    kept: Predictors = model.__dict__.setdefault("_predictors", Predictors({}, {}))
    rows = next(iter(symbols))
    form = (tuple(specs.items()), structure(model))
    if rows > batch_size and form not in kept.apart:
        kept.apart[form] = len(symbols) == 1 and _rows_apart(model, specs)
    at_once = batch_size if rows > batch_size and kept.apart[form] else max(*symbols, 1)  # else every input whole
    capacity = {symbol: 1 << max(min(count, at_once) - 1, 0).bit_length() for count, symbol in symbols.items()}
    key = (form, tuple(capacity.items()))
    if key not in kept.known:
        try:
            kept.known[key] = _predictor(model, specs, capacity)
        except ShapeError as error:
            if len(symbols) == 1:
                raise
            counts = {name: len(a) for name, a in arrays.items()}
            raise ShapeError(f"the inputs have different numbers of rows, {counts}, and so: {error}") from None
    return kept.known[key](arrays, rows, at_once)


def _rows_apart(model: Module, specs: dict[str, Spec]) -> bool:
    from wholestep.session.by_rows import what_mixes_rows  # few predictions are of many rows

    graph, _ = forward_graph(model, _as_one(specs))
    return not what_mixes_rows(forward_only(graph))


def _as_one(specs: dict[str, Spec]) -> Inputs:
    return specs["x"] if list(specs) == ["x"] else specs


def _predictor(model: Module, specs: dict[str, Spec], capacity: dict[str, int]) -> Predictor:
    from wholestep.session.build import build_inference_session

    state_with_numbers(model)
    graph, out = forward_graph(model, _as_one(specs))
    form = _form("output", out) if isinstance(out, tuple | list) else None
    used = {s for t in graph.inputs.values() for s in symbols_of(t.shape)}
    return Predictor(build_inference_session(graph, capacity={s: n for s, n in capacity.items() if s in used}), form)


def _form(name: str, out: Any) -> Any:
    """The names of `_numbered` in the tuples that they came in."""
    items = [
        _form(f"{name}{i}.", item) if isinstance(item, tuple | list) else f"{name}{i}" for i, item in enumerate(out)
    ]
    return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)


def _filled(form: Any, outputs: Mapping[str, AnyArray]) -> Any:
    if isinstance(form, str):
        return outputs[form]
    items = [_filled(item, outputs) for item in form]
    return type(form)(*items) if hasattr(form, "_fields") else type(form)(items)


def _arrays(model: Module, inputs: Sequence[object], named: Mapping[str, object]) -> dict[str, AnyArray]:
    known = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in known if p.kind is not p.VAR_POSITIONAL]
    for p in known:
        if p.kind is p.VAR_POSITIONAL:
            names = names[: list(known).index(p)] + [f"{p.name}{i}" for i in range(len(inputs))]
    if len(inputs) == 1 and not named:
        names = ["x"]
    if len(inputs) > len(names) or not (inputs or named):
        fail(UsageError, f"{type(model).__name__} takes {', '.join(names)}; received {len(inputs)} arrays.")
    given = {**dict(zip(names, inputs)), **named}
    return {name: as_array(value, f"the input {name!r}") for name, value in given.items()}


def _spec(model: Module, array: AnyArray, rows: str) -> Spec:
    """One symbolic axis of rows, the rest as it came; floats in the dtype that the model computes in."""
    shape: Shape | tuple[object, ...] = (rows, *array.shape[1:])
    if array.dtype.kind == "f":
        kinds = [p.dtype for p in model.parameters().values()]
        return Spec(shape, kinds[0] if kinds else "float32")
    return Spec(shape, int32 if array.dtype.kind in "iu" else array.dtype.name)


def _symbols(arrays: Mapping[str, AnyArray]) -> dict[int, str]:
    """A dimension for each number of rows: "batch" for those of the first input; nodes and edges have two."""
    found: dict[int, str] = {}
    for name, a in arrays.items():
        if a.ndim == 0:
            fail(ShapeError, "a model takes batches: give an array whose first axis counts examples, x[None].")
        found.setdefault(len(a), f"rows_of_{name}" if found else "batch")
    return found

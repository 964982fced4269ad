"""The graph of a module: inputs, outputs by name, loss."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from wholestep import losses
from wholestep.compiler.frontend.graph import Graph, record_into
from wholestep.compiler.frontend.layers.segments import OFFSETS, PackedSegments, packed_rows
from wholestep.compiler.frontend.step import ROW_NUMBERS, Spec
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import LOSS, fail, record_for_layer
from wholestep.errors import OptionError, ShapeError, UsageError
from wholestep.losses.table import LossFunction
from wholestep.nn.module.module import MEANINGS, SEEN, Module
from wholestep.nn.module.trace import trace_of
from wholestep.steps.states import share_state

if TYPE_CHECKING:
    from wholestep.data.augment import Augmentations

Inputs = Spec | Mapping[str, Spec]
T = TypeVar("T")
FOR_ROWS = (OFFSETS, ROW_NUMBERS)  # inputs that describe the rows of a batch, and are no arguments of `forward`


def record_inputs(graph: Graph, inputs: Inputs) -> dict[str, Tensor]:
    """The inputs of a model in a graph: `x` for a single one."""
    specs = dict(inputs) if isinstance(inputs, Mapping) else {"x": inputs}
    for name, spec in specs.items():
        if not isinstance(spec, Spec):
            fail(UsageError, f"the input {name!r} needs a ws.Spec(shape, dtype); received {spec!r}.")
    return {name: graph.input(name, spec.shape, spec.dtype) for name, spec in specs.items()}


def record_outputs(model: Module, inputs: Inputs, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's outputs by name: `output` for a single one, `output0` and so on for several."""
    return _outputs_by_name(model, _call_model(model, inputs, tensors))


def _call_model(model: Module, inputs: Inputs, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(inputs, Mapping) and OFFSETS in inputs:
        from wholestep.steps.segment_check import check_segments  # imported here because few models take packed rows

        check_segments(type(model).__name__, inputs, partial(_record_packed, model))
        return _call_packed(model, inputs, tensors)[1]
    rows = {name: t for name, t in tensors.items() if name not in FOR_ROWS}
    return _call_plain(model, without_row_inputs(inputs), rows)


def _record_packed(model: Module, graph: Graph, inputs: Mapping[str, Spec]) -> tuple[PackedSegments, list[Tensor]]:
    """The segments and the outputs of a model that is recorded on packed rows."""
    trace_of(graph, model)
    segments, out = _call_packed(model, inputs, record_inputs(graph, inputs))
    return segments, [*_outputs_by_name(model, out).values()]


def _call_packed(
    model: Module, inputs: Mapping[str, Spec], tensors: Mapping[str, Tensor]
) -> tuple[PackedSegments, Any]:
    """The segments of packed rows, and what a model returns for their other inputs."""
    rows = {name: t for name, t in tensors.items() if name not in FOR_ROWS}
    segments = PackedSegments(tensors[OFFSETS], next(iter(rows.values())).shape[1])
    with packed_rows(segments):
        return segments, _call_plain(model, without_row_inputs(inputs), rows)


def without_row_inputs(inputs: Inputs) -> Inputs:
    """The inputs of a model without inputs about its rows, which its `forward` does not take."""
    if isinstance(inputs, Spec) or not {*FOR_ROWS} & {*inputs}:
        return inputs
    rest = {name: spec for name, spec in inputs.items() if name not in FOR_ROWS}
    return rest["x"] if [*rest] == ["x"] else rest


def _call_plain(model: Module, inputs: Inputs, tensors: Mapping[str, Tensor]) -> Any:
    parameters = inspect.signature(model.forward).parameters.values()
    if isinstance(inputs, Spec):
        _need_one_argument(model, parameters)
        return model(*tensors.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):  # forward(self, *inputs) takes them in order
        named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} & {*tensors}
        return model(*(t for n, t in tensors.items() if n not in named), **{n: tensors[n] for n in named})
    arguments = by_argument(model, tensors)
    _need_arguments(model, arguments)
    return model(**arguments)


def _need_one_argument(model: Module, parameters: Iterable[inspect.Parameter]) -> None:
    needs = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(needs) > 1:
        fail(
            UsageError,
            f"{type(model).__name__}.forward takes {', '.join(needs)}; the data has one input. Give a tuple of arrays "
            "in their order, ((a, b), y), or a dict by these names.",
        )


def by_argument(model: Module, inputs: Mapping[str, T]) -> dict[str, T]:
    """Inputs by the arguments of `forward`; unnamed ones, `x0`, `x1`, …, in order."""
    parameters = inspect.signature(model.forward).parameters.values()
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(inputs) < 2 or set(inputs) & set(takes) or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return dict(inputs)
    from wholestep.data.table import names_by_position  # imported here because most inputs have names

    if [*inputs] != names_by_position(len(inputs)):
        return dict(inputs)
    if len(inputs) > len(takes):
        arguments = ", ".join(takes) or "nothing"
        fail(UsageError, f"{type(model).__name__}.forward takes {arguments}; the data has {len(inputs)} inputs.")
    return dict(zip(takes, inputs.values()))


def _outputs_by_name(model: Module, out: Any) -> dict[str, Tensor]:
    if isinstance(out, Tensor):
        return {"output": out}
    if isinstance(out, Mapping):
        return dict(out)
    if not isinstance(out, Sequence) or not out:
        kind = type(model).__name__
        fail(UsageError, f"{kind}.forward must return a tensor, or a tuple or dict of tensors; it returned {out!r}.")
    return dict(_number_outputs("output", out))


def _number_outputs(name: str, outputs: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """The names `output0`, `output1`; of a nested tuple, such as the states of a recurrent layer, `output1.0`,
    `output1.1`.
    """
    for i, out in enumerate(outputs):
        full_name = f"{name}{i}"
        if isinstance(out, tuple | list):
            yield from _number_outputs(f"{full_name}.", out)
        else:
            yield full_name, out


def _need_arguments(model: Module, named: Mapping[str, object]) -> None:
    """Raise UsageError unless the inputs are the arguments of `forward`."""
    parameters = inspect.signature(model.forward).parameters.values()
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needs = [p.name for p in parameters if p.name in takes and p.default is p.empty]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if any(n not in named for n in needs) or (not open_ended and any(n not in takes for n in named)):
        fail(
            UsageError,
            f"{type(model).__name__}.forward takes {', '.join(takes) or 'nothing'}; the inputs are called "
            f"{', '.join(named)}. Give both the same names.",
        )


def forward_graph(model: Module, inputs: Inputs) -> tuple[Graph, Any]:
    """The graph that computes a model's outputs, over the model's own state, and what its forward returned."""
    with record_into(Graph()) as graph:
        trace_of(graph, model)
        out = _call_model(model, inputs, record_inputs(graph, inputs))
        graph.set_outputs(_outputs_by_name(model, out))
    _remember_inputs(model, without_row_inputs(inputs))
    share_state(graph, model)
    return graph, out


def _remember_inputs(model: Module, inputs: Inputs) -> None:
    model.__dict__[SEEN] = by_argument(model, inputs) if isinstance(inputs, Mapping) else inputs


def training_graph(
    model: Module,
    inputs: Inputs | None,
    targets: Inputs | None,
    loss: Any,
    weights: Mapping[str, float] | None = None,
    augmentations: Augmentations | None = None,
) -> Graph:
    """The graph of a model with its loss: inputs `x` and `labels`, or the names of the dicts."""
    if inputs is None or loss is None:
        missing = 'inputs=ws.Spec(("batch", 784))' if inputs is None else 'loss="cross_entropy"'
        raise UsageError(f"a session over a model needs its inputs, targets and loss; add {missing}.")
    with record_into(Graph()) as graph:
        # modules that the loss calls are named after its variables
        graph.recorded_by = loss if callable(loss) else None
        trace_of(graph, model)
        tensors = record_inputs(graph, inputs)
        if augmentations is not None:
            from wholestep.steps.augment import augment_inputs, mixed_loss  # imported here because few runs augment

            tensors, share = augment_inputs(graph, tensors, augmentations)
            loss = loss if share is None else mixed_loss(loss, share)
        outputs = record_outputs(model, inputs, tensors)
        aims = record_inputs(graph, {"labels": targets} if isinstance(targets, Spec) else targets or {})
        with record_for_layer(LOSS):
            total = sum_losses(graph, _with_penalties(graph, _loss(loss, outputs, aims)), weights)
        graph.set_outputs({"loss": total, **outputs})
    _remember_inputs(model, without_row_inputs(inputs))
    if meanings := {name: m for name, t in outputs.items() if (m := graph.meanings.get(t.node)) is not None}:
        model.__dict__[MEANINGS] = meanings
    share_state(graph, model)
    return graph


def _with_penalties(graph: Graph, loss: Tensor | Mapping[str, Tensor]) -> Tensor | Mapping[str, Tensor]:
    """The loss with the penalties of modules as additional parts."""
    if not graph.penalties:
        return loss
    graph.penalties_read = True
    parts = dict(loss) if isinstance(loss, Mapping) else {"data": loss}
    for name in graph.penalties.keys() & parts.keys():
        fail(UsageError, f"the loss has a part {name!r} already; give ws.add_loss another name.")
    return {**parts, **graph.penalties}


def sum_losses(graph: Graph, loss: Tensor | Mapping[str, Tensor], weights: Mapping[str, float] | None) -> Tensor:
    """The loss: Σ weight·part if it has parts, which the graph stores; weights are runtime scalars."""
    if not isinstance(loss, Mapping):
        if weights is not None:
            fail(
                UsageError,
                f"loss_weights={dict(weights)} is for a loss of several parts: a dict by output, or a function that "
                'returns a dict, {"reconstruction": a, "kl": b}. This loss is one number; multiply it yourself.',
            )
        return loss
    for name in weights or {}:
        if name not in loss:
            fail(UsageError, f"loss_weights[{name!r}]: the loss has no such part; it has: {', '.join(loss)}.")
    for name, part in loss.items():
        if not isinstance(part, Tensor) or part.shape != () or not part.dtype.is_float:
            fail(
                ShapeError, f"loss[{name!r}] is one number, a float scalar; received {part!r}. Reduce it: loss.mean()."
            )
    if len(loss) > 1:
        graph.loss_parts = {name: part.node for name, part in loss.items()}
    first, *rest = (_weight_part(graph, name, part, weights) for name, part in loss.items())
    return sum(rest, start=first)


def _weight_part(graph: Graph, name: str, part: Tensor, weights: Mapping[str, float] | None) -> Tensor:
    if weights is None or name not in weights:
        return part
    value = weights[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        fail(OptionError, f"loss_weights[{name!r}] must be a number; received {value!r}.")
    return graph.scalar(f"loss_weights.{name}", float(value)).astype(part.dtype) * part


def _loss(loss: Any, outputs: Mapping[str, Tensor], aims: dict[str, Tensor]) -> Tensor | Mapping[str, Tensor]:
    """A loss by name or function; a dict has one for each output, with the target of the same name."""
    weight = {"sample_weight": aims.pop("sample_weight")} if "sample_weight" in aims else {}
    if isinstance(loss, Mapping) and ("kind" not in loss or "kind" in outputs):  # otherwise the to_config() of one loss
        for name in loss:
            if name not in outputs or name not in aims:
                names = f"outputs: {', '.join(outputs)}; targets: {', '.join(aims) or 'none'}"
                raise UsageError(f"loss[{name!r}] needs an output and a target of that name; there are {names}.")
        functions = {name: _with_row_weights(losses.get(one), weight) for name, one in loss.items()}
        return {name: one(outputs[name], aims[name], **weight) for name, one in functions.items()}
    function = _with_row_weights(losses.get(loss), weight)
    if len(outputs) == 1 and len(aims) <= 1:
        return function(*outputs.values(), *aims.values(), **weight)
    if isinstance(function, losses.Loss):
        raise UsageError(
            f"{function.kind} takes one output and one target; there are the outputs {', '.join(outputs)} and the "
            f"targets {', '.join(aims) or 'none'}. Give a loss for each, loss={{{next(iter(outputs))!r}: "
            f"{function.kind!r}, ...}}, or a function of both dicts."
        )
    return function(dict(outputs), dict(aims), **weight)


def _with_row_weights(function: LossFunction, weight: Mapping[str, Tensor]) -> LossFunction:
    """The loss function; UsageError for a user-defined one that does not take the weights of the data."""
    if not weight or isinstance(function, losses.Loss):
        return function
    parameters = inspect.signature(function).parameters.values()
    if not any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters):
        name = getattr(function, "__name__", type(function).__name__)
        raise UsageError(
            f"the data has sample weights, and the loss {name} does not take them: give it a third argument, "
            f"def {name}(output, target, sample_weight), or leave the weights out."
        )
    return function


def only_module(graph: Graph) -> Module | None:
    """The only module of a step; None without modules, UsageError for several."""
    roots = trace_of(graph).roots()
    if len(roots) > 1:
        one = next(iter(roots))
        raise UsageError(
            f"this step has several modules: {', '.join(roots)}. Say which is to predict: session.predict({one}, ...) "
            f"or {one}.predict(...)."
        )
    return next(iter(roots.values()), None)

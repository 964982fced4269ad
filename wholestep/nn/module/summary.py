"""`model.summary`: a table of the layers of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.ops import LEAVES, OPS, Family
from wholestep.compiler.ir.types import TensorType, evaluate, shape_text, symbols_of
from wholestep.errors import UsageError
from wholestep.nn.module import trace
from wholestep.nn.module.module import SEEN, Module

MOST_LAYERS = 99  # the most layers that a notebook shows


@dataclass(frozen=True)
class SummaryRow:
    """The row of one module, with the flops and bytes of the forward pass for one example."""

    path: str
    kind: str
    output: str
    parameters: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """The result of `model.summary`: rows for programs, printed as a table."""

    rows: tuple[SummaryRow, ...]
    parameters: int
    trained: int
    flops: int
    bytes: int

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        from wholestep.notebook import table_html

        rows = [(f"{r.path} {r.kind}".strip(), r.output, r.parameters, r.flops, r.bytes) for r in self.rows]
        total = ("total", "", self.parameters, self.flops, self.bytes)
        return table_html(("layer", "output", "parameters", "flops", "bytes"), [*rows[:MOST_LAYERS], total])

    def __str__(self) -> str:
        head = ("layer", "output", "parameters", "flops", "bytes")
        cells = [
            (f"{r.path} {r.kind}".strip(), r.output, f"{r.parameters:,}", f"{r.flops:,}", f"{r.bytes:,}")
            for r in self.rows
        ]
        total = ("total", "", f"{self.parameters:,}", f"{self.flops:,}", f"{self.bytes:,}")
        widths = [max(len(row[i]) for row in (head, *cells, total)) for i in range(len(head))]
        line = "  ".join("─" * w for w in widths)
        frozen = f"; {self.parameters - self.trained:,} of them frozen" if self.trained != self.parameters else ""
        return "\n".join(
            [
                _line(head, widths),
                line,
                *(_line(row, widths) for row in cells),
                line,
                _line(total, widths),
                f"{self.parameters:,} parameters{frozen}; flops and bytes of activations are one example's, forward",
            ]
        )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:2], widths)]
    right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:])]
    return "  ".join(left + right)


def summarize(model: Module, inputs: Sequence[object], named: Mapping[str, object]) -> Summary:
    """Record a model on inputs of the given specs, or on those of its last call, and count the work of each module."""
    if not inputs and not named:
        inputs, named = _last_inputs(model)
    graph = Graph()
    tensors = [_input(graph, f"x{i}" if i else "x", spec) for i, spec in enumerate(inputs)]
    by_name = {name: _input(graph, name, spec) for name, spec in named.items()}
    rows: dict[str, SummaryRow] = {}

    def watch(path: str, module: Module, inputs: object, output: object) -> None:
        before = set(toposort(_nodes(inputs)))
        new = [n for n in toposort(_nodes(output)) if n not in before]
        parameters = sum(p.elements for p in module.__dict__.get("_owned", {}).values())
        shapes = ", ".join(shape_text(n.type.shape) for n in _nodes(output))
        kind = type(module).__name__
        row = SummaryRow(path, kind, shapes, parameters, sum(map(_flops, new)), sum(_bytes(n) for n in _nodes(output)))
        earlier_call = rows.get(path)
        rows[path] = row if earlier_call is None else _again(earlier_call, row)

    with trace.watch_modules(watch):
        model(*tensors, **by_name)
    order = [path for path, _ in model.named_modules()]
    model_row = rows[""]
    listed = sorted((r for r in rows.values() if r.path), key=lambda r: order.index(r.path)) or [model_row]
    owned = list(model.parameters().values())
    trained = sum(p.elements for p in owned if not p.frozen)
    leaves = [r for r in listed if not any(o.path.startswith(f"{r.path}.") for o in listed)]
    return Summary(
        tuple(listed), sum(p.elements for p in owned), trained, model_row.flops, sum(r.bytes for r in leaves)
    )


def _last_inputs(model: Module) -> tuple[Sequence[object], Mapping[str, object]]:
    """The inputs that the model was last trained, evaluated or called with."""
    specs = model.__dict__.get(SEEN)
    if specs is None:
        text = f"this {type(model).__name__} has not seen data yet; say what it takes: model.summary({_likely(model)})."
        fail(UsageError, text)
    return ((), specs) if isinstance(specs, Mapping) else ((specs,), {})


def _likely(model: Module) -> str:
    """A guess of the input spec from the first weight."""
    for _, module in model.named_modules():
        owned = module.__dict__.get("_owned", {}).values()
        shape: list[int] = next((list(p.shape) for p in owned if p.trained and len(p.shape) > 1), [])
        kind = type(module).__name__
        if kind == "Embedding":
            return 'ws.Spec(("batch", "time"), "int32")'
        if kind == "Linear":
            return f'ws.Spec(("batch", {shape[1]}))'
        if kind in ("Conv1d", "Conv2d"):
            sizes = ", 28" * (len(shape) - 2)
            return f'ws.Spec(("batch", {shape[1]}{sizes}))'
    return 'ws.Spec(("batch", 784))'


def _again(first: SummaryRow, row: SummaryRow) -> SummaryRow:
    """The row of a module that runs twice: twice the work with the same parameters."""
    return SummaryRow(
        first.path, first.kind, row.output, first.parameters, first.flops + row.flops, first.bytes + row.bytes
    )


def _input(graph: Graph, name: str, spec: object) -> Tensor:
    if not isinstance(spec, Spec):
        fail(UsageError, f"summary takes a ws.Spec for each input, e.g. ws.Spec(('batch', 784)); received {spec!r}.")
    return graph.input(name, spec.shape, spec.dtype)


def _nodes(value: object) -> list[Node]:
    if isinstance(value, Tensor):
        return [value.node]
    if isinstance(value, Mapping):
        return _nodes(list(value.values()))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [n for item in value for n in _nodes(item)]
    return []


def _elements(type: TensorType) -> int:
    """The number of elements for one example: every symbolic dimension counts as 1."""
    return int(evaluate(type.elements, dict.fromkeys(symbols_of(type.shape), 1)))


def _bytes(node: Node) -> int:
    return _elements(node.type) * node.type.dtype.size


def _flops(node: Node) -> int:
    """The additions and multiplications of a node: exact for contractions, one per element for other arithmetic."""
    if node.op in LEAVES or OPS[node.op].family is Family.MOVEMENT:
        return 0
    if node.op == "matmul":
        return 2 * _elements(node.type) * int(node.inputs[0].type.shape[-2 if node.attrs.transpose_a else -1])  # type: ignore[attr-defined]
    if node.op == "attention":  # scores, then the weighted sum of values
        return 2 * (_elements(node.inputs[0].type) + _elements(node.type)) * int(node.inputs[1].type.shape[-2])
    if node.op == "conv2d":
        return 2 * _elements(node.type) * math.prod(int(e) for e in node.inputs[1].type.shape[1:])
    return _elements(node.inputs[0].type) if len(node.inputs) == 1 else _elements(node.type)

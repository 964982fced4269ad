"""A profile by layer: the modules that recorded the nodes of a kernel, and their shares of its time.

Plans do not store layers.  The same definition is planned again, with nodes as the origin of kernels: a
node has the layer that recorded it, as it has the user's line, and so do its gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from wholestep.compiler.frontend.trace import UPDATE
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.passes.egraph.cost import CostModel
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.io.traffic import stores
from wholestep.compiler.plan.model.kernel import Kernel, Plan, Space
from wholestep.compiler.spans import Spans
from wholestep.errors import UnknownNameError, UsageError
from wholestep.session.building.plans import Plans

OUTSIDE = "(outside layers)"
FORWARD, BACKWARD, UPDATING = range(3)
Place = tuple[int, int]  # program, kernel
Parts = Mapping[tuple[str, int], float]  # (layer, phase) -> its part of a kernel, of 1


@dataclass(frozen=True)
class LayerTime:
    """The seconds of a step that one layer takes: its kernels' times, and its shares of kernels of several layers."""

    layer: str  # the path of a module; "(loss)" and the like for nodes outside of modules
    forward: float
    backward: float
    update: float
    share: float  # fraction of the time of all kernels

    @property
    def seconds(self) -> float:
        """Seconds of the forward pass, the backward pass and the update together."""
        return self.forward + self.backward + self.update


@dataclass(frozen=True)
class LayerProfile:
    """The layers of a step in the order in which they run, and their times; `str()` is a table."""

    rows: tuple[LayerTime, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all kernels."""
        return sum(r.seconds for r in self.rows)

    def __iter__(self) -> Iterator[LayerTime]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, layer: str) -> LayerTime:
        for row in self.rows:
            if row.layer == layer:
                return row
        raise UnknownNameError(
            f"there is no layer {layer!r}; there are: {', '.join(repr(r.layer) for r in self.rows)}."
        )

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        from wholestep.notebook import table_html

        names = ("layer", "forward us", "backward us", "update us", "share")
        times = [(1e6 * r.forward, 1e6 * r.backward, 1e6 * r.update) for r in self.rows]
        return table_html(names, [(r.layer, *t, f"{r.share:.1%}") for r, t in zip(self.rows, times, strict=True)])

    def __str__(self) -> str:
        width = max(len("layer"), *(len(r.layer) for r in self.rows)) if self.rows else len("layer")
        head = f"{'layer':<{width}}  {'forward':>10}  {'backward':>10}  {'update':>10}  {'share':>6}"
        total = LayerTime(
            "total", *(sum(column) for column in zip(*((r.forward, r.backward, r.update, r.share) for r in self.rows)))
        )
        lines = [_line(r, width) for r in (*self.rows, total)]
        return "\n".join([head, *lines, "the time of a kernel of several layers is divided by the cost of its nodes"])


def _line(row: LayerTime, width: int) -> str:
    times = "  ".join(f"{1e6 * t:>7.1f} us" for t in (row.forward, row.backward, row.update))
    return f"{row.layer:<{width}}  {times}  {row.share:>6.1%}"


def sum_by_layer(parts: Mapping[Place, Parts], seconds: Mapping[Place, float]) -> LayerProfile:
    """The times of layers, computed from the times of kernels; nodes outside of modules are last."""
    spent: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for place, of_kernel in parts.items():
        for (layer, phase), part in of_kernel.items():
            spent[layer][phase] += part * seconds.get(place, 0.0)
    total = sum(map(sum, spent.values())) or 1.0
    rows = [LayerTime(layer, t[FORWARD], t[BACKWARD], t[UPDATING], sum(t) / total) for layer, t in spent.items()]
    return LayerProfile(tuple(sorted(rows, key=lambda r: r.layer.startswith("("))))


def activations_by_layer(compiled: Plans, plans: Sequence[Plan], program: int) -> dict[str, int]:
    """The bytes of the arena of a program at the kernel where most are in use, by the layer that computes them.

    A buffer belongs to the layer with the largest share of the kernel that writes it first.
    """
    plan = plans[program]
    buffers = [b for b in plan.buffers if b.space is Space.ARENA]
    changes = [0] * (len(plan.kernels) + 1)
    for b in buffers:
        changes[b.first] += b.bytes
        changes[b.last + 1] -= b.bytes
    in_use = list(accumulate(changes))
    peak = in_use.index(max(in_use))
    parts = {place[1]: of_kernel for place, of_kernel in parts_of(compiled, plans).items() if place[0] == program}
    sizes: dict[str, int] = {}
    for b in buffers:
        if b.first <= peak <= b.last:
            shares = parts[plan.kernels[b.first].id]
            layer = max(shares, key=lambda key: shares[key])[0]
            sizes[layer] = sizes.get(layer, 0) + b.bytes
    return sizes


# -- layers of kernels -----------------------------------------------------------------------------------------------


def parts_of(compiled: Plans, plans: Sequence[Plan]) -> dict[Place, Parts]:
    """The layers of every kernel of the plans that a step runs."""
    definition = compiled.definition
    kind, _, phase = definition.main.partition(".")
    entries = [f"{kind}.{p}" for p in definition.micro_batches(kind).phases] if phase else [definition.main]
    kernel_nodes = [_kernel_nodes(compiled, entry, plan) for entry, plan in zip(entries, plans, strict=True)]
    layers = {n.line.layer for kernels in kernel_nodes for nodes in kernels for n in nodes if n.line is not None}
    shares: dict[Place, Parts] = {}
    for i, (kernels, plan) in enumerate(zip(kernel_nodes, plans, strict=True)):
        work = _Work(compiled, plan)
        for kernel, nodes in zip(plan.kernels, kernels, strict=True):
            shares[i, kernel.id] = _parts(nodes, work, _written_bytes(kernel, plan, layers))
    return shares


def _kernel_nodes(compiled: Plans, entry: str, plan: Plan) -> list[list[Node]]:
    """The nodes of each kernel of a plan, from planning again."""
    nodes: list[Node] = []

    def label(node: Node) -> str:
        nodes.append(node)
        return str(len(nodes) - 1)

    graph = compiled.definition.trace(entry)
    compiler = Compiler(compiled.options, Spans(), label=label)
    sizes, limit = compiled.definition.sizes_of(graph), compiled.limit(entry)
    again, _ = compiler.plan(graph, sizes, compiled.target, limit)
    if [replace(k, origin=()) for k in again.kernels] != [replace(k, origin=()) for k in plan.kernels]:
        raise UsageError(
            f"the layers of {entry!r} are not known: planning again gave another plan than the profiled one, as after "
            "a build whose e-graph hit its budget, or a session that was changed since. Build the session again."
        )
    return [[nodes[int(i)] for i in k.origin] for k in again.kernels]


class _Work:
    """Estimates the relative cost of nodes from the target's cost table."""

    def __init__(self, compiled: Plans, plan: Plan) -> None:
        self._sizes, self._operation = plan.sizes, compiled.target.costs.operation
        self._model = CostModel(Tables(), plan.sizes, compiled.target.costs)

    def __call__(self, node: Node) -> float:
        if node.op in OPS and isinstance(node.result, TensorType):
            return self._model.node_cost(node).work
        return self._operation * sum(evaluate(t.elements, self._sizes) for t in node.results)


def _parts(nodes: Sequence[Node], work: _Work, written: Mapping[str, float]) -> Parts:
    """A kernel's shares by layer and phase; nodes that passes created without a line are ignored."""
    recorded = [n for n in nodes if n.line is not None]
    work_of: defaultdict[tuple[str, int], float] = defaultdict(float)
    for node in recorded:
        assert node.line is not None
        layer = node.line.layer or OUTSIDE
        if layer == UPDATE:
            for owner, part in written.items():
                work_of[owner, UPDATING] += part * work(node)
        else:
            work_of[layer, BACKWARD if node.name.startswith("gradient of ") else FORWARD] += work(node)
    total = sum(work_of.values())
    return {key: part / total for key, part in work_of.items()} if total else {(OUTSIDE, FORWARD): 1.0}


def _written_bytes(kernel: Kernel, plan: Plan, layers: set[str]) -> dict[str, float]:
    """The layers whose states a kernel updates, by bytes."""
    states = {a.buffer: plan.buffers[a.buffer] for a in stores(kernel) if plan.buffers[a.buffer].space is Space.STATE}
    written: defaultdict[str, float] = defaultdict(float)
    for buffer in states.values():
        written[_owner(buffer.name, layers)] += buffer.bytes
    total = sum(written.values())
    return {layer: size / total for layer, size in written.items()} if total else {UPDATE: 1.0}


def _owner(state: str, layers: set[str]) -> str:
    path = state
    while path:
        path = path.rpartition(".")[0]
        if path in layers and path:
            return path
    return UPDATE

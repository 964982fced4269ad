"""The gradient of a loop (backpropagation through time): a loop over the same steps in the opposite direction.

Its carries are the gradients of the forward loop's carries.  Values of a forward step that the gradient needs are
stacked by the forward loop and read slice by slice.  The gradient of a loop-invariant value is a sum over steps, which
is computed outside of the loop: there a sum of products of slices is one product of the stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.type_rules.scan import type_over_steps
from wholestep.compiler.ir.types import Extent, TensorType, adjoint_type, boolean
from wholestep.compiler.passes.autodiff.scan_sums import sum_over_steps

PullBack = Callable[[dict[Node, list[Node]], Sequence[Node], Sequence[Node]], Mapping[Node, Node]]
_VIEWS = ops_with(Trait.VIEW) | {"cast"}


def scan_gradients(node: Node, upstream: Mapping[int, Node], wanted: set[int], pull_back: PullBack) -> dict[int, Node]:
    """The gradients of the inputs at the positions `wanted`, given the gradients of the results by index.

    `pull_back(arrived, order, inputs)` is the chain rule inside the body.
    """
    return _ScanGradient(node, upstream, wanted, pull_back).result()


class _ScanGradient:
    def __init__(self, node: Node, upstream: Mapping[int, Node], wanted: set[int], pull_back: PullBack) -> None:
        self.node, self.upstream, self.wanted = node, upstream, wanted
        self.attrs = attrs_of(node, at.ScanAttrs)
        self.body = self.attrs.graph
        self.forward = set(self.body.nodes)
        self.carried = [i for i in range(self.attrs.carries) if self.body.inputs[i].type.dtype.is_float]
        self.parameters: dict[str, list[Node]] = {"carry": [], "slice": [], "steady": []}
        self.outside: list[Callable[[], Node]] = []  # the sequences to slice; deferred until the forward loop is built
        self.invariant: list[Node] = []
        self.rebuilt: dict[Node, Node] = {}  # nodes of the forward body and of the gradient -> nodes of the new body
        self.saved: dict[Node, int] = {}  # node that the forward loop stacks -> index of the result
        self.outputs: dict[Node, int] = {}  # node that the new loop stacks -> index of the result
        self.totals = self._differentiate(pull_back)

    # -- one step ----------------------------------------------------------------------------------------------------
    def _differentiate(self, pull_back: PullBack) -> Mapping[Node, Node]:
        arrived: dict[Node, list[Node]] = {}
        for i in self.carried:
            after = self.body.outputs[i].node
            arrived.setdefault(after, []).append(self._parameter("carry", adjoint_type(after.type)))
        for index, gradient in self.upstream.items():
            root = self.body.outputs[index].node
            cut = self._after(gradient) if index < self.attrs.carries else gradient
            arrived.setdefault(root, []).append(self._slice(adjoint_type(root.type), lambda cut=cut: cut))  # type: ignore[misc]
        inputs = [self.body.inputs[i] for i in sorted({*self.carried, *self.wanted})]
        return pull_back(arrived, self.body.nodes, inputs)

    def _parameter(self, kind: str, type: TensorType) -> Node:
        leaf = Node("input", (), at.InputAttrs(f"{kind}{len(self.parameters[kind])}", type))
        self.parameters[kind].append(leaf)
        self.rebuilt[leaf] = leaf
        return leaf

    def _slice(self, type: TensorType, outside: Callable[[], Node]) -> Node:
        self.outside.append(outside)
        return self._parameter("slice", type)

    # -- slices along the step axis ------------------------------------------------------------------------------------
    def _cut(self, trail: Node, start: Extent, stop: Extent) -> Node:
        shape = trail.type.shape
        return build.slice_axes(trail, (start, *(0,) * (len(shape) - 1)), (stop, *shape[1:]))

    def _before(self, trail: Node) -> Node:
        """The values of a carry before each step, from its values at all step boundaries."""
        first = 1 if self.attrs.reverse else 0
        return self._cut(trail, first, self.attrs.length + first)

    def _after(self, trail: Node) -> Node:
        first = 0 if self.attrs.reverse else 1
        return self._cut(trail, first, self.attrs.length + first)

    def _first(self, trail: Node, reverse: bool) -> Node:
        """The initial value of a carry: the one before the first step that runs."""
        slot: Extent = self.attrs.length if reverse else 0
        return build.reshape(self._cut(trail, slot, slot + 1), trail.type.shape[1:])

    def _stack(self, node: Node) -> Node:
        """The values of a node of the forward body in all steps, stacked."""
        if node not in self.body.inputs:
            stacked = build.make("item", (self.extended,), at.ItemAttrs(self.saved[node]))
            return self._after(stacked) if self.saved[node] < self.attrs.carries else stacked
        position, carries = self.body.inputs.index(node), self.attrs.carries
        if position < carries:
            return self._before(build.make("item", (self.extended,), at.ItemAttrs(position)))
        operand = self.node.inputs[position]
        if position < carries + self.attrs.sequences:
            return operand
        return build.expand_to(operand, (self.attrs.length, *operand.type.shape), range(1, operand.type.rank + 1))

    # -- the new body --------------------------------------------------------------------------------------------------
    def _rebuild(self, root: Node) -> Node:
        """A node of the gradient as a node of the new body; forward values that it reads become parameters."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.rebuilt:
                stack.pop()
                continue
            if self._is_stacked(node):
                self.rebuilt[node] = self._read(node)
            elif missing := [i for i in node.inputs if i not in self.rebuilt]:
                stack += missing
            else:
                self.rebuilt[node] = node.with_inputs([self.rebuilt[i] for i in node.inputs])
        return self.rebuilt[root]

    def _is_stacked(self, node: Node) -> bool:
        """Is a value of the forward step stacked?  Views, comparisons and constants are cheaper to recompute."""
        if node.op == "item" and node.inputs[0].op == "scan":  # a nested loop, to which autodiff may have added results
            return all(n.inputs or n not in self.rebuilt for n in toposort([node]))
        if node not in self.forward or node.op in _VIEWS or not isinstance(node.result, TensorType):
            return False
        return node.op == "input" or (bool(node.inputs) and node.type.dtype != boolean)

    def _read(self, node: Node) -> Node:
        """The parameter of the new body that holds a value of the forward step."""
        self._save(node)
        if node in self.body.inputs[self.attrs.carries + self.attrs.sequences :]:
            self.invariant.append(self.node.inputs[self.body.inputs.index(node)])
            return self._parameter("steady", node.type)
        return self._slice(node.type, lambda: self._stack(node))

    def _save(self, node: Node) -> None:
        if node not in self.body.inputs and node not in self.saved:
            outputs = [o.node for o in self.body.outputs]
            extra = len(outputs) + len([n for n in self.saved if n not in outputs])
            self.saved[node] = outputs.index(node) if node in outputs else extra

    def _request_stack(self, node: Node) -> None:
        """Request that the values of a node in all steps are stacked, by the forward loop or by the new one."""
        if node in self.forward or self._is_stacked(node):
            self._save(node)
        elif node not in self.outputs:
            self._rebuild(node)
            self.outputs[node] = len(self.carried) + len(self.outputs)

    def _stack_placeholder(self, node: Node) -> Node:
        """A placeholder for the stack of a node, in the first pass, which collects the stacks that are needed."""
        self._request_stack(node)
        return Node("input", (), at.InputAttrs("stack", type_over_steps(node.type, self.attrs.length)))

    # -- assembly ------------------------------------------------------------------------------------------------------
    def result(self) -> dict[int, Node]:
        carries, sequences, inputs = self.attrs.carries, self.attrs.sequences, self.body.inputs
        gradient_of = {p: self.totals[inputs[p]] for p in sorted(self.wanted) if inputs[p] in self.totals}
        after = [self._rebuild(self._total(i)) for i in self.carried]
        for p, gradient in gradient_of.items():
            if p >= carries + sequences:
                sum_over_steps(gradient, self.attrs.length, self._stack_placeholder)
            elif p >= carries:
                self._request_stack(gradient)
        loop = self._loop(after)

        def stack(node: Node) -> Node:
            if node not in self.outputs:
                return self._stack(node)
            return build.make("item", (loop,), at.ItemAttrs(self.outputs[node]))

        gradients = {p: build.full(0, adjoint_type(self.node.inputs[p].type)) for p in self.wanted}
        for p, gradient in gradient_of.items():
            if p >= carries + sequences:
                gradients[p] = sum_over_steps(gradient, self.attrs.length, stack)
            elif p >= carries:
                gradients[p] = stack(gradient)
        for number, i in enumerate(self.carried):
            if i in self.wanted:
                gradients[i] = self._initial(i, build.make("item", (loop,), at.ItemAttrs(number)))
        return gradients

    def _total(self, carry: int) -> Node:
        leaf = self.body.inputs[carry]
        return self.totals[leaf] if leaf in self.totals else build.full(0, adjoint_type(leaf.type))

    def _loop(self, after: Sequence[Node]) -> Node:
        """The backward loop, after the forward loop was extended to stack the values that the backward loop reads."""
        outputs = [*self.body.outputs]
        for node in self.saved:
            if self.saved[node] == len(outputs):
                outputs.append(Output(f"y{len(outputs)}", node))
        graph = IRGraph(tuple(outputs), (), self.body.inputs)
        a = self.attrs
        self.extended = self.node
        if len(outputs) > len(self.body.outputs):
            self.extended = build.make(
                "scan", self.node.inputs, at.ScanAttrs(graph, a.carries, a.sequences, a.length, a.reverse)
            )
        results = [*after, *(self.rebuilt[n] for n in self.outputs)]
        body = IRGraph(
            tuple(Output(f"y{i}", n) for i, n in enumerate(results)),
            (),
            (*self.parameters["carry"], *self.parameters["slice"], *self.parameters["steady"]),
        )
        zeros = [build.full(0, leaf.type) for leaf in self.parameters["carry"]]
        sequences = [outside() for outside in self.outside]
        attrs = at.ScanAttrs(body, len(zeros), len(sequences), a.length, not a.reverse)
        return build.make("scan", [*zeros, *sequences, *self.invariant], attrs)

    def _initial(self, carry: int, trail: Node) -> Node:
        """The gradient of an initial carry: the final carry of the backward loop, plus its own upstream gradient."""
        gradient = self._first(trail, self.attrs.reverse)
        if carry in self.upstream:
            gradient = build.add(gradient, self._first(self.upstream[carry], self.attrs.reverse))
        return gradient


def read_positions(node: Node, index: int) -> frozenset[int]:
    """The inputs of a loop that one of its results depends on."""
    attrs = attrs_of(node, at.ScanAttrs)
    inputs, outputs = attrs.graph.inputs, [o.node for o in attrs.graph.outputs]
    pending, seen, positions = [index], {index}, set[int]()
    while pending:
        result = pending.pop()
        if result < attrs.carries:
            positions.add(result)  # the initial value is part of the stacked carries
        reached = set(toposort([outputs[result]]))
        for position, leaf in enumerate(inputs):
            if leaf in reached:
                positions.add(position)
                if position < attrs.carries and position not in seen:
                    seen.add(position)
                    pending.append(position)
    return frozenset(positions)

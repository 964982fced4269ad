"""The gradient of a loop: a loop over the same steps in the other direction.

Its carries are the gradients of the forward loop's.  What a step's gradient needs of the forward step is stacked by the
forward loop and read slice by slice.  The gradient of a value that is the same in every step is a sum over the steps,
taken outside of the loop, where a sum of products of slices is one product of the stacks.
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
    """The gradients of the inputs at the positions `wanted`, given those of the results by their numbers.

    `pull_back(arrived, order, inputs)` is the chain rule inside the body.
    """
    return _Gradient(node, upstream, wanted, pull_back).result()


class _Gradient:
    def __init__(self, node: Node, upstream: Mapping[int, Node], wanted: set[int], pull_back: PullBack) -> None:
        self.node, self.upstream, self.wanted = node, upstream, wanted
        self.attrs = attrs_of(node, at.ScanAttrs)
        self.body = self.attrs.graph
        self.forward = set(self.body.nodes)
        self.carried = [i for i in range(self.attrs.carries) if self.body.inputs[i].type.dtype.is_float]
        self.parameters: dict[str, list[Node]] = {"carry": [], "slice": [], "steady": []}
        self.outside: list[Callable[[], Node]] = []  # what is sliced, once the forward loop gives it
        self.steady: list[Node] = []
        self.moved: dict[Node, Node] = {}  # nodes of the forward body and of the gradient -> nodes of the new body
        self.saved: dict[Node, int] = {}  # forward nodes that the forward loop stacks -> number of the result
        self.outputs: dict[Node, int] = {}  # what the new loop stacks
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
        self.moved[leaf] = leaf
        return leaf

    def _slice(self, type: TensorType, outside: Callable[[], Node]) -> Node:
        self.outside.append(outside)
        return self._parameter("slice", type)

    # -- where things are along the steps ------------------------------------------------------------------------------
    def _cut(self, trail: Node, start: Extent, stop: Extent) -> Node:
        shape = trail.type.shape
        return build.slice_axes(trail, (start, *(0,) * (len(shape) - 1)), (stop, *shape[1:]))

    def _before(self, trail: Node) -> Node:
        """A carry before each step."""
        first = 1 if self.attrs.reverse else 0
        return self._cut(trail, first, self.attrs.length + first)

    def _after(self, trail: Node) -> Node:
        first = 0 if self.attrs.reverse else 1
        return self._cut(trail, first, self.attrs.length + first)

    def _first(self, trail: Node, reverse: bool) -> Node:
        """A carry before the first step that runs."""
        slot: Extent = self.attrs.length if reverse else 0
        return build.reshape(self._cut(trail, slot, slot + 1), trail.type.shape[1:])

    def _stack(self, node: Node) -> Node:
        """All values that a node of the forward body has, one per step."""
        if node not in self.body.inputs:
            found = build.make("item", (self.extended,), at.ItemAttrs(self.saved[node]))
            return self._after(found) if self.saved[node] < self.attrs.carries else found
        position, carries = self.body.inputs.index(node), self.attrs.carries
        if position < carries:
            return self._before(build.make("item", (self.extended,), at.ItemAttrs(position)))
        given = self.node.inputs[position]
        if position < carries + self.attrs.sequences:
            return given
        return build.expand_to(given, (self.attrs.length, *given.type.shape), range(1, given.type.rank + 1))

    # -- the new body --------------------------------------------------------------------------------------------------
    def _move(self, root: Node) -> Node:
        """A node of the gradient as a node of the new body; what it reads of the forward step becomes a slice."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.moved:
                stack.pop()
                continue
            if self._is_kept(node):
                self.moved[node] = self._read(node)
            elif missing := [i for i in node.inputs if i not in self.moved]:
                stack += missing
            else:
                self.moved[node] = node.with_inputs([self.moved[i] for i in node.inputs])
        return self.moved[root]

    def _is_kept(self, node: Node) -> bool:
        """Is a value of the forward step stacked?  A view, a comparison or a constant is cheaper to have again."""
        if node.op == "item" and node.inputs[0].op == "scan":  # of a loop in the body, perhaps one that gives more
            return all(n.inputs or n not in self.moved for n in toposort([node]))
        if node not in self.forward or node.op in _VIEWS or not isinstance(node.result, TensorType):
            return False
        return node.op == "input" or (bool(node.inputs) and node.type.dtype != boolean)

    def _read(self, node: Node) -> Node:
        """The parameter through which the new body reads a value of the forward step."""
        self._save(node)
        if node in self.body.inputs[self.attrs.carries + self.attrs.sequences :]:
            self.steady.append(self.node.inputs[self.body.inputs.index(node)])
            return self._parameter("steady", node.type)
        return self._slice(node.type, lambda: self._stack(node))

    def _save(self, node: Node) -> None:
        if node not in self.body.inputs and node not in self.saved:
            known = [o.node for o in self.body.outputs]
            extra = len(known) + len([n for n in self.saved if n not in known])
            self.saved[node] = known.index(node) if node in known else extra

    def _keep(self, node: Node) -> None:
        """See to it that all values of a node, forward or not, will be there after the loops."""
        if node in self.forward or self._is_kept(node):
            self._save(node)
        elif node not in self.outputs:
            self._move(node)
            self.outputs[node] = len(self.carried) + len(self.outputs)

    def _note(self, node: Node) -> Node:
        """Stands for the stack of a node while it is found out which ones are needed."""
        self._keep(node)
        return Node("input", (), at.InputAttrs("stack", type_over_steps(node.type, self.attrs.length)))

    # -- putting it together -------------------------------------------------------------------------------------------
    def result(self) -> dict[int, Node]:
        carries, sequences, inputs = self.attrs.carries, self.attrs.sequences, self.body.inputs
        given = {p: self.totals[inputs[p]] for p in sorted(self.wanted) if inputs[p] in self.totals}
        after = [self._move(self._total(i)) for i in self.carried]
        for p, gradient in given.items():
            if p >= carries + sequences:
                sum_over_steps(gradient, self.attrs.length, self._note)
            elif p >= carries:
                self._keep(gradient)
        loop = self._loop(after)

        def stack(node: Node) -> Node:
            if node not in self.outputs:
                return self._stack(node)
            return build.make("item", (loop,), at.ItemAttrs(self.outputs[node]))

        found = {p: build.full(0, adjoint_type(self.node.inputs[p].type)) for p in self.wanted}
        for p, gradient in given.items():
            if p >= carries + sequences:
                found[p] = sum_over_steps(gradient, self.attrs.length, stack)
            elif p >= carries:
                found[p] = stack(gradient)
        for number, i in enumerate(self.carried):
            if i in self.wanted:
                found[i] = self._initial(i, build.make("item", (loop,), at.ItemAttrs(number)))
        return found

    def _total(self, carry: int) -> Node:
        leaf = self.body.inputs[carry]
        return self.totals[leaf] if leaf in self.totals else build.full(0, adjoint_type(leaf.type))

    def _loop(self, after: Sequence[Node]) -> Node:
        """The loop of gradients; first, the forward loop with what it has to stack for it."""
        known = [*self.body.outputs]
        for node in self.saved:
            if self.saved[node] == len(known):
                known.append(Output(f"y{len(known)}", node))
        graph = IRGraph(tuple(known), (), self.body.inputs)
        a = self.attrs
        self.extended = self.node
        if len(known) > len(self.body.outputs):
            self.extended = build.make(
                "scan", self.node.inputs, at.ScanAttrs(graph, a.carries, a.sequences, a.length, a.reverse)
            )
        results = [*after, *(self.moved[n] for n in self.outputs)]
        held = IRGraph(
            tuple(Output(f"y{i}", n) for i, n in enumerate(results)),
            (),
            (*self.parameters["carry"], *self.parameters["slice"], *self.parameters["steady"]),
        )
        zeros = [build.full(0, leaf.type) for leaf in self.parameters["carry"]]
        sequences = [outside() for outside in self.outside]
        attrs = at.ScanAttrs(held, len(zeros), len(sequences), a.length, not a.reverse)
        return build.make("scan", [*zeros, *sequences, *self.steady], attrs)

    def _initial(self, carry: int, trail: Node) -> Node:
        """The gradient of a first value: what the last step of the loop of gradients leaves, and its own."""
        found = self._first(trail, self.attrs.reverse)
        if carry in self.upstream:
            found = build.add(found, self._first(self.upstream[carry], self.attrs.reverse))
        return found


def read_positions(node: Node, index: int) -> frozenset[int]:
    """The inputs of a loop that one of its results depends on."""
    attrs = attrs_of(node, at.ScanAttrs)
    inputs, outputs = attrs.graph.inputs, [o.node for o in attrs.graph.outputs]
    pending, seen, found = [index], {index}, set[int]()
    while pending:
        result = pending.pop()
        if result < attrs.carries:
            found.add(result)  # its first value is part of its trail
        reached = set(toposort([outputs[result]]))
        for position, leaf in enumerate(inputs):
            if leaf in reached:
                found.add(position)
                if position < attrs.carries and position not in seen:
                    seen.add(position)
                    pending.append(position)
    return frozenset(found)

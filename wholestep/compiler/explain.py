"""Explains how a tensor is computed: its gradient rules and the e-graph rewrites applied to it, with source lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compiler.ir.attrs import ItemAttrs
from wholestep.compiler.ir.graph import IRGraph, Node, Output, toposort
from wholestep.compiler.passes.egraph.explain import ExplainedStep, explain
from wholestep.compiler.passes.egraph.optimize import Request, Rewriting, rewrite_by_equality
from wholestep.compiler.passes.egraph.rules.rule import Exactness
from wholestep.compiler.passes.egraph.saturate import Budget, SaturationError
from wholestep.compiler.pipeline import STAGES
from wholestep.compiler.target import Target
from wholestep.errors import UnknownNameError
from wholestep.options import CompileOptions

LAW_WIDTH = 100  # characters of a rewrite law that are shown


@dataclass(frozen=True)
class ExplainedStage:
    """The rewrites that one run of the e-graph applied to a tensor.  `rules` suffice to prove them."""

    stage: str
    steps: tuple[ExplainedStep, ...]
    rules: tuple[str, ...]

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.stage}: no rewrite was applied"
        return "\n".join([f"{self.stage}: {len(self.steps)} steps", *map(_step_text, self.steps)])


@dataclass(frozen=True)
class Explanation:
    """Why a tensor is computed by these operations; `print` shows it.

    `gradient_rules` of a gradient are the operations from the loss back to the parameter, each with its layer and line:
    the chain rule multiplies by the derivative of each.
    """

    name: str
    stages: tuple[ExplainedStage, ...]
    gradient_rules: tuple[str, ...] = ()

    @property
    def rules(self) -> tuple[str, ...]:
        """The name of every rule that the explanation uses."""
        return tuple(dict.fromkeys(rule.split("@")[0] for stage in self.stages for rule in stage.rules))

    @property
    def exactness(self) -> str:
        """The least exact numeric class among the steps; "bitwise" if there are none."""
        levels = [Exactness(s.exactness) for stage in self.stages for s in stage.steps]
        return max(levels, default=Exactness.BITWISE).value

    def _repr_html_(self) -> str:
        """The text below its name, for notebooks."""
        from wholestep.notebook import text_html

        return text_html(f"{self.name} ({self.exactness})", str(self))

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.exactness})", *map(str, self.stages)]
        if self.gradient_rules:
            rules = [f"  {rule}" for rule in self.gradient_rules]
            lines[1:1] = [f"reverse mode, from the loss back: gradient rules of {len(rules)} operations", *rules]
        return "\n".join(lines)


def _step_text(step: ExplainedStep) -> str:
    law = step.law if len(step.law) <= LAW_WIDTH else step.law[: LAW_WIDTH - 3] + "..."
    where = f" at {step.line}" if step.line else ""
    return f"  {step.rule} [{step.exactness}]: {step.node}{where}\n    {law}\n    {step.reason}"


def explain_tensor(graph: IRGraph, options: CompileOptions, target: Target, name: str) -> Explanation:
    """Rerun the e-graph stages for a target and explain their effect on one output, update, state or gradient."""
    nodes = _nodes_by_name(graph)
    if name not in nodes:
        raise UnknownNameError(
            f"there is nothing named {name!r} to explain; there are: {', '.join(map(repr, nodes)) or 'none'}."
        )
    stages: list[ExplainedStage] = []
    runner = _Runner(options, target)
    forward = runner.rewrite(graph, before_autodiff=True)
    if forward is not None:
        stages.append(runner.stage("before autodiff", forward, [nodes[name]]))
    graph = graph if forward is None else forward.after
    step, ends = _expand_gradients(graph, name, target)
    step_rewriting = runner.rewrite(step, before_autodiff=False)
    if step_rewriting is not None:
        stages.append(runner.stage("whole step", step_rewriting, ends))
    return Explanation(name, tuple(stages), _gradient_rules(nodes[name]))


@dataclass(frozen=True)
class _Runner:
    options: CompileOptions
    target: Target

    def rewrite(self, graph: IRGraph, *, before_autodiff: bool) -> Rewriting | None:
        """The result of the e-graph stage; None if the stage did not run or failed."""
        options = self.options
        if not options.uses_egraph or (before_autodiff and options.exactness == "bitwise"):
            return None
        budget = Budget(options.egraph_rounds, options.egraph_nodes, seconds=options.egraph_seconds)
        request = Request({}, self.target.costs, Exactness(options.exactness), before_autodiff, budget)
        try:
            return rewrite_by_equality(graph, request, {})
        except SaturationError:
            return None

    def stage(self, name: str, rewriting: Rewriting, ends: Sequence[Node]) -> ExplainedStage:
        steps, rules = explain(rewriting, ends)
        return ExplainedStage(name, tuple(steps), rules)


def _gradient_rules(node: Node) -> tuple[str, ...]:
    """The operations between a loss and a parameter, the loss first; empty if the node is not a gradient."""
    if node.op != "item" or node.inputs[0].op != "gradient":
        return ()
    loss, *params = node.inputs[0].inputs
    assert isinstance(node.attrs, ItemAttrs)
    parameter = params[node.attrs.index]
    between: dict[Node, None] = {parameter: None}
    for each in toposort([loss]):
        if any(i in between for i in each.inputs):
            between[each] = None
    return tuple(_operation_text(each) for each in reversed(between) if each is not parameter)


def _operation_text(node: Node) -> str:
    if node.line is None:
        return node.op
    return f"{node.op}{f' in {node.line.layer}' if node.line.layer else ''} at {node.line}"


def _nodes_by_name(graph: IRGraph) -> dict[str, Node]:
    """Outputs, kept tensors, updates of states, and gradients of a step, by name."""
    nodes = {o.name: o.node for o in graph.outputs}
    for update in graph.updates:
        nodes.setdefault(update.name, update.node)
    for node in graph.nodes:
        if node.op == "item" and node.inputs[0].op == "gradient" and node.name:
            nodes.setdefault(node.name, node)
    return nodes


def _expand_gradients(graph: IRGraph, name: str, target: Target) -> tuple[IRGraph, list[Node]]:
    """The step with its gradients expanded by the compiler's stages, and the node of one name in it."""
    node = _nodes_by_name(graph)[name]
    marked = IRGraph((*graph.outputs, Output("explained", node)), graph.updates, graph.inputs)
    for stage in STAGES:
        if stage.name in ("autodiff", "simplify"):
            for rewrite in stage.passes_for(target):
                marked = rewrite(marked)
    *outputs, last = marked.outputs
    step = IRGraph(tuple(outputs), marked.updates, marked.inputs)
    return step, [last.node] if last.node in set(step.nodes) else []

"""The story of a tensor: what the e-graph made of it, stage by stage, down to the user's lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compiler.ir.graph import Graph, Node, Output
from wholestep.compiler.passes.egraph.explain import ExplainedStep, explain
from wholestep.compiler.passes.egraph.optimize import Request, Rewriting, rewrite_by_equality
from wholestep.compiler.passes.egraph.rules.rule import Exactness
from wholestep.compiler.passes.egraph.saturate import Budget, SaturationError, Worker, shared_worker
from wholestep.compiler.pipeline import STAGES
from wholestep.compiler.target import Target
from wholestep.errors import UnknownNameError
from wholestep.options import CompileOptions

LAW_WIDTH = 100


@dataclass(frozen=True)
class ExplainedStage:
    """What one run of the e-graph did for a tensor.  `rules` prove it without any other."""

    stage: str
    steps: tuple[ExplainedStep, ...]
    rules: tuple[str, ...]

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.stage}: as it was written"
        return "\n".join([f"{self.stage}: {len(self.steps)} steps", *map(_step_text, self.steps)])


@dataclass(frozen=True)
class Explanation:
    """Why a tensor is computed as it is; `str()` is the story."""

    name: str
    stages: tuple[ExplainedStage, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Every rule that the story needs, without the instance it was used in."""
        return tuple(dict.fromkeys(rule.split("@")[0] for stage in self.stages for rule in stage.rules))

    @property
    def exactness(self) -> str:
        """The least exact numeric class among the steps; "bitwise" where there are none."""
        levels = [Exactness(s.exactness) for stage in self.stages for s in stage.steps]
        return max(levels, default=Exactness.BITWISE).value

    def __str__(self) -> str:
        return "\n".join([f"{self.name} ({self.exactness})", *map(str, self.stages)])


def _step_text(step: ExplainedStep) -> str:
    law = step.law if len(step.law) <= LAW_WIDTH else step.law[: LAW_WIDTH - 3] + "..."
    where = f" at {step.line}" if step.line else ""
    return f"  {step.rule} [{step.exactness}]: {step.node}{where}\n    {law}\n    {step.reason}"


def explain_tensor(graph: Graph, options: CompileOptions, target: Target, name: str) -> Explanation:
    """Run the e-graph's stages for a target again and tell what they did for one output, update, state or gradient."""
    known = _named_nodes(graph)
    if name not in known:
        raise UnknownNameError(
            f"there is nothing named {name!r} to explain; there are: {', '.join(map(repr, known)) or 'none'}."
        )
    told: list[ExplainedStage] = []
    runner = _Runner(options, shared_worker(), target)
    forward = runner.rewrite(graph, before_autodiff=True)
    if forward is not None:
        told.append(runner.stage("before autodiff", forward, [known[name]]))
    graph = graph if forward is None else forward.after
    step, ends = _expanded(graph, name, target)
    whole = runner.rewrite(step, before_autodiff=False)
    if whole is not None:
        told.append(runner.stage("whole step", whole, ends))
    return Explanation(name, tuple(told))


@dataclass(frozen=True)
class _Runner:
    options: CompileOptions
    worker: Worker
    target: Target

    def rewrite(self, graph: Graph, *, before_autodiff: bool) -> Rewriting | None:
        """What the compiler's stage did; None where it does not run or gave up."""
        options = self.options
        if not options.uses_egraph or (before_autodiff and options.exactness == "bitwise"):
            return None
        budget = Budget(options.egraph_rounds, options.egraph_nodes, seconds=options.egraph_seconds)
        request = Request({}, self.target.costs, Exactness(options.exactness), before_autodiff, budget)
        try:
            return rewrite_by_equality(graph, request, self.worker, {})
        except SaturationError:
            return None

    def stage(self, name: str, rewriting: Rewriting, ends: Sequence[Node]) -> ExplainedStage:
        steps, rules = explain(rewriting, ends, self.worker)
        return ExplainedStage(name, tuple(steps), rules)


def _named_nodes(graph: Graph) -> dict[str, Node]:
    """Outputs, kept tensors, updates of states, and gradients that a step is made of."""
    found = {o.name: o.node for o in graph.outputs}
    for update in graph.updates:
        found.setdefault(update.name, update.node)
    for node in graph.nodes:
        if node.op == "item" and node.inputs[0].op == "gradient" and node.name:
            found.setdefault(node.name, node)
    return found


def _expanded(graph: Graph, name: str, target: Target) -> tuple[Graph, list[Node]]:
    """The step with its gradients written out, as the compiler's stages leave it, and the node of one name in it."""
    node = _named_nodes(graph)[name]
    marked = Graph((*graph.outputs, Output("explained", node)), graph.updates, graph.inputs)
    for stage in STAGES:
        if stage.name in ("autodiff", "simplify"):
            for rewrite in stage.passes_for(target):
                marked = rewrite(marked)
    *outputs, last = marked.outputs
    step = Graph(tuple(outputs), marked.updates, marked.inputs)
    return step, [last.node] if last.node in set(step.nodes) else []

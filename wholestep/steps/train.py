"""The training step: gradients, clipping, the update, and skipping steps whose gradients are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from wholestep.compiler.frontend.functions.primitives import where
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import UPDATE, fail, record_for_layer
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.errors import GradientError, GraphError, OptionError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.gradient_transforms import (
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    count_nonfinite,
    global_norm,
)
from wholestep.records import dataclass
from wholestep.steps.evaluate import has_own_updates_only, loss_of, record_metrics
from wholestep.steps.loss_scale import LOSS_SCALE, scale_loss, unscale_gradients
from wholestep.steps.options import BUFFERS, GRAD_NORM, PLAIN, StepOptions

NONFINITE, SKIPPED = "nonfinite", "nonfinite.skipped"


def train_graph(
    graph: Graph,
    optimizer: Optimizer,
    trainable: Sequence[str] | None = None,
    options: StepOptions = PLAIN,
) -> ir.IRGraph:
    """The user's graph with gradients of its first output and the optimizer's update; `graph` itself is unchanged.

    A graph without outputs that updates states itself (`ws.AdamOptimizer`) is used as the step unchanged; its loss is
    NaN.

    Args:
        trainable: name patterns of the parameters to train (all of them when None); the others are frozen.
        options: clipping, metrics, loss scale and so on.
    """
    step = graph.copy()
    declared = select_parameters(step, trainable)
    if has_own_updates_only(step):
        step.set_outputs({"loss": step.constant(math.nan, "float32")})
        declared = []  # the recorded updates are complete
    loss = loss_of(step)
    params = reachable_parameters(loss, optimizer.trainable(declared), options.unused)
    if options.privacy is not None:
        from wholestep.steps.private_gradients import private_slopes  # imported here because it imports autodiff

        record_metrics(step, options.measures)
        return finish(*private_slopes(graph, step, params, optimizer, options), optimizer, options)
    scale = None if options.loss_scale is None else options.loss_scale.now(step)
    grads = unscale_gradients(optimizer.gradients(scale_loss(loss, scale), params), scale)
    record_metrics(step, options.measures)
    return finish(step, Slopes(loss, params, grads), optimizer, options)


@dataclass(frozen=True)
class Slopes:
    """The loss, the trained parameters and their gradients."""

    loss: Tensor
    params: Sequence[Tensor]
    grads: Sequence[Tensor]


def finish(step: Graph, slopes: Slopes, optimizer: Optimizer, options: StepOptions) -> ir.IRGraph:
    """Clip, update, and skip the update if gradients are not finite; `step` is the caller's copy."""
    with record_for_layer(UPDATE):
        return _finish_step(step, slopes, optimizer, options)


def _finish_step(step: Graph, slopes: Slopes, optimizer: Optimizer, options: StepOptions) -> ir.IRGraph:
    params, grads = slopes.params, slopes.grads
    for p, g in zip(params, grads, strict=True):
        if p.name in step.kept:
            step.keep(g, f"{p.name}.grad")
    clipped, extra = _clip_gradients(step, grads, options)
    if options.gradient_norm:
        from wholestep.steps.gradient_norm import GradientNorm

        GradientNorm().record(step, extra[GRAD_NORM], extra[GRAD_NORM])
    if options.may_skip:
        # With a loss scale only gradients are checked: a loss without rows is NaN, but its gradients are 0 at any
        # scale.
        watched = grads if options.nonfinite == "ignore" else [slopes.loss, *grads]
        extra[NONFINITE] = bad = count_nonfinite(watched)
        # Gradients depend on the check, so that no kernel computes and stores an update before it.
        clipped = [where(bad == 0.0, g, 0.0) for g in clipped]
    optimizer.update(step, params, clipped)
    done = step.to_ir()
    scale = [] if options.loss_scale is None else options.loss_scale.advanced(step, count_nonfinite(grads) == 0.0)
    if scale:
        extra[LOSS_SCALE] = scale[0][1]
    for name in extra.keys() & {o.name for o in done.outputs}:
        fail(GraphError, f"the output {name!r} has the name of a value of clipping or nonfinite=; rename it.")
    outputs = tuple(ir.Output(name, t.node) for name, t in extra.items())
    done = ir.IRGraph((*done.outputs, *outputs), done.updates, done.inputs)
    if options.per_row.names:
        from wholestep.steps.row_values import with_row_values  # imported here because it imports autodiff

        named = {p.name: g for p, g in zip(params, grads, strict=True)}
        done = with_row_values(step, done, slopes.loss, named, options.per_row)
    skipping = _skip_bad_steps(step, done, extra[NONFINITE]) if NONFINITE in extra else done
    return replace(skipping, updates=(*skipping.updates, *(ir.Update(s.name, value.node) for s, value in scale)))


def _clip_gradients(
    step: Graph, grads: Sequence[Tensor], options: StepOptions
) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
    """Clip by value, by the norm of each parameter, then by the global norm, whose value before is reported."""
    if options.clip_value is not None:
        grads = clip_by_value(grads, step.scalar("clip.value", options.clip_value))
    if options.clip_each is not None:
        grads = clip_by_norm(grads, step.scalar("clip.each", options.clip_each))
    if options.clip_norm is None:
        return grads, {GRAD_NORM: global_norm(grads)} if options.gradient_norm else {}
    grads, norm = clip_by_global_norm(grads, step.scalar("clip.norm", options.clip_norm))
    return grads, {GRAD_NORM: norm}


def _skip_bad_steps(step: Graph, graph: ir.IRGraph, bad: Tensor) -> ir.IRGraph:
    """Keep the value of every state, bit for bit, if `bad` is not 0; skipped steps are counted."""
    count = step.state(SKIPPED, (), 0, "int64")
    fine = bad == 0.0
    counted = where(fine, count, count + 1)
    states = step.states
    # Values of rows are recorded of every step: an epoch has as many as rows.
    changed = [u for u in graph.updates if not u.name.startswith(BUFFERS)]
    updates = [ir.Update(u.name, _unless(fine, u.node, states[u.name]).node) for u in changed]
    updates += [u for u in graph.updates if u not in changed]
    return ir.IRGraph(graph.outputs, (*updates, ir.Update(SKIPPED, counted.node)), graph.inputs)


def _unless(fine: Tensor, new: Node, old: Tensor) -> Tensor:
    return where(fine, Tensor(new, old.graph), old)


# -- parameters ---------------------------------------------------------------------------------------------------


def select_parameters(graph: Graph, patterns: Sequence[str] | None = None) -> list[Tensor]:
    """The parameters whose names match; all of them without patterns."""
    params = graph.parameters
    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in params):
            fail(OptionError, f"trainable={pattern!r} matches none of the parameters {list(params)}.")
    return [p for name, p in params.items() if patterns is None or _matches(name, patterns)]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def reachable_parameters(loss: Tensor, params: list[Tensor], unused: Sequence[str] = ()) -> list[Tensor]:
    """The parameters that the loss depends on; GradientError for others that are not named in `unused`."""
    needed: set[Node] = set(toposort([loss.node]))
    owners = {} if loss.graph is None else loss.graph.owners
    optional = {name for name, owned in owners.items() if getattr(owned, "optional", False)}
    missing = [p for p in params if p.node not in needed and p.name not in optional and not _matches(p.name, unused)]
    if missing:
        names = ", ".join(f"{p.name!r} (made at {p.node.line})" for p in missing)
        fail(
            GradientError,
            f"the loss does not depend on {names}. Use it, freeze it, model.freeze({missing[0].name!r}), or accept it: "
            f"ws.build_session(..., unused=[{missing[0].name!r}]).",
        )
    return [p for p in params if p.node in needed]

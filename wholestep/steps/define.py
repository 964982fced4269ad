"""From what users hand over, a module, graph or step and how it trains, to a definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.precision import as_precision
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.ir.types import DType
from wholestep.errors import UsageError
from wholestep.nn.module.module import Module
from wholestep.optim import SGD, Optimizer
from wholestep.steps.capacity import merge_capacity
from wholestep.steps.definition import Definition
from wholestep.steps.evaluate import has_own_updates_only
from wholestep.steps.loss_scale import LossScale
from wholestep.steps.module import Inputs, training_graph
from wholestep.steps.recipe import PLAIN, StepOptions, as_loss_scale, with_parts
from wholestep.steps.states import clocks_of

Model = Module | Graph | Step


def precision_of(model: Model, precision: str, loss_scale: LossScale | None) -> tuple[DType, LossScale | None]:
    """What products are computed in, and how the loss is scaled for that."""
    half = as_precision(precision)
    if not isinstance(model, Step):
        return half, as_loss_scale(loss_scale, half)
    if loss_scale is not None:
        raise UsageError(
            "a @ws.step function scales its own loss: grads = ws.LossScale().gradients(g, loss, params), then "
            ".update(g, optimizer, params, grads). Leave loss_scale= out."
        )
    return half, None


def as_graph(
    model: Model,
    inputs: Inputs | None,
    targets: Inputs | None,
    loss: Any,
    loss_weights: Mapping[str, float] | None = None,
) -> Graph | Step:
    """A module with its loss as a graph; graphs and steps as they are."""
    if isinstance(model, Module):
        return training_graph(model, inputs, targets, loss, loss_weights)
    if any(given is not None for given in (inputs, targets, loss, loss_weights)):
        raise UsageError(
            "inputs=, targets=, loss= and loss_weights= describe a module; a graph or step declares its own."
        )
    return model


def define_step(
    model: Graph | Step,
    optimizer: Optimizer | str | None,
    batch_size: int | None,
    capacity: Mapping[str, int] | None,
    recipe: StepOptions = PLAIN,
    ranks: int = 0,
    shard: str | None = None,
    model_ranks: int = 1,
) -> Definition:
    """What is trained: a graph by an optimizer (SGD unless given), or a step, which has its own."""
    if isinstance(model, Step):
        if optimizer is not None:
            raise UsageError("a @ws.step function applies its own optimizers; leave optimizer= out.")
        taken = {name: getattr(recipe, name) for name in ("measures", "schedules", "precision", "memory")}
        if recipe != StepOptions(**taken):
            raise UsageError(
                "a @ws.step function records its own clipping and makes one update of each batch "
                "(ws.optim.clip_by_global_norm); of these options it takes metrics=, schedule=, precision= and memory= "
                "alone."
            )
        made = Definition(model, None, {}, recipe, ranks=ranks, shard=shard, model_ranks=model_ranks)
        return with_capacity(made, batch_size, capacity)
    need_graph(model, "build_session")
    if optimizer is not None and has_own_updates_only(model):
        raise UsageError(
            f"optimizer={optimizer!r}: the graph has no outputs, so there is no loss to take gradients of; it updates "
            f"{', '.join(model.updates)} itself. Leave optimizer= out, or say what the loss is: g.set_outputs([loss])."
        )
    model.need_penalties()
    recipe = with_parts(recipe, model)
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        from wholestep.optim.core.names import get  # most give an optimizer

        optimizer = get(optimizer)
    made = Definition(model, optimizer or SGD(), {}, recipe, ranks=ranks, shard=shard, model_ranks=model_ranks)
    return with_capacity(made, batch_size, capacity)


def need_graph(model: object, what: str) -> None:
    """UsageError unless it is a graph."""
    if not isinstance(model, Graph):
        raise UsageError(
            f"{what} takes a ws.nn.Module, a ws.Graph or a @ws.step function; received {type(model).__name__}: "
            f"{model!r}."
        )


def with_capacity(definition: Definition, batch_size: int | None, capacity: Mapping[str, int] | None) -> Definition:
    """A definition with the largest sizes; an error names a dimension that has none."""
    definition = replace(definition, clocks=clocks_of(definition.model))
    graph = definition.trace(definition.main)
    fitted = replace(definition, capacity=merge_capacity(graph, batch_size, capacity))
    fitted.sizes_of(graph)
    return fitted

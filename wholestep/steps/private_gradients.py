"""Gradients with differential privacy: each row's gradient is clipped to a norm, and Gaussian noise is added.

The norms of the rows come from the first backward pass (`passes/per_row/terms.py`), and so do the clipped sums
(`passes/per_row/weighted.py`); the gradient of a single row is not stored for layers with a Gram form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NoReturn

from wholestep.compiler.frontend.functions.primitives import concat, log, sqrt, where
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.types import float64
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.per_row.contributions import Contributions, gradient_square_norms
from wholestep.compiler.passes.per_row.losses import row_losses, unaffected_terms
from wholestep.compiler.passes.per_row.weighted import WeightedSums
from wholestep.compiler.pipeline import BEFORE_GRADIENTS
from wholestep.errors import GraphError, UsageError
from wholestep.optim import Optimizer
from wholestep.privacy.settings import Privacy
from wholestep.steps.capacity import batch_symbol
from wholestep.steps.options import StepOptions
from wholestep.steps.separable_loss import depends_on, need_plain_gradients
from wholestep.steps.train import Slopes

# sin(πx) / x and cos(πx) as polynomials of x², to 5e-8 for |x| <= 1/2
SINE = (3.14159264, -5.16771008, 2.55007739, -0.59829041, 0.07765591)
COSINE = (0.99999995, -4.9347928, 4.05841079, -1.33187297, 0.21968242)
CLIP, NOISE, ROWS = "privacy.clip", "privacy.noise", "privacy.rows"  # runtime scalars


def check_private_options(options: StepOptions, ranks: int) -> None:
    """Raise UsageError for options that a private step does not support."""
    reasons = {
        "accumulate=": options.accumulate > 1 and "choose a larger batch_size",
        "memory=": options.memory is not None and "choose a smaller batch_size",
        "per_row=": options.per_row.names and "values of single rows are what privacy protects",
        "precision='float16'": options.loss_scale is not None and "use precision='bfloat16'",
        "clip_value=": options.clip_value is not None and "privacy=ws.Privacy(clip=...) limits every row",
        "shards= and workers=": ranks > 0 and "train in one process",
    }
    for name, reason in reasons.items():
        if reason:
            raise UsageError(f"privacy= with {name} is not supported: leave one of them out; {reason}.")


def private_slopes(
    graph: Graph, step: Graph, params: Sequence[Tensor], optimizer: Optimizer, options: StepOptions
) -> tuple[Graph, Slopes]:
    """The step over the user's graph with its gradients expanded, and the private gradients of all parameters."""
    assert options.privacy is not None
    need_plain_gradients(graph, optimizer, options, "privacy=", "Use the optimizer inside it.")
    batch = batch_symbol(graph, "privacy=")
    _refuse_updates(graph, batch)
    whole = step.to_ir()
    for forward_pass in (*BEFORE_GRADIENTS, expand_gradients):  # a transposed convolution is recorded as a gradient
        whole = forward_pass(whole)
    whole, slopes, penalties = _expand(step, whole, params, batch)
    final = _over(step, whole)
    rows = Contributions(batch)
    named = {p.name: g for p, g in zip(params, slopes, strict=True)}
    norms = Tensor(gradient_square_norms(named, rows), final).sqrt()
    clip = final.scalar(CLIP, options.privacy.clip)
    factors = where(norms > clip, clip / norms, 1.0)
    sums = WeightedSums(rows, factors.node, batch)
    private = _with_noise(final, [Tensor(sums.of(g), final) for g in slopes], clip, options.privacy)
    loss = Tensor(whole.outputs[0].node, final)
    grads = [g if p is None else g + Tensor(p, final) for g, p in zip(private, penalties, strict=True)]
    return final, Slopes(loss, [final.adopt(p) for p in params], grads)


def _expand(
    step: Graph, whole: ir.IRGraph, params: Sequence[Tensor], batch: str
) -> tuple[ir.IRGraph, list[Node], list[Node | None]]:
    """The graph without gradient nodes, the gradients of the sum of the rows' losses, and those of penalties."""
    rows, loss = Contributions(batch), whole.outputs[0].node
    values = row_losses(loss, rows, batch)
    if (mixing := rows.mixing_node(values)) is not None:
        _refuse_mixing(mixing)
    slopes = gradients(Tensor(values, step).sum(), params)
    rest = unaffected_terms(loss, rows)
    reached = set(toposort([rest])) if rest is not None else set()
    penalized = [p for p in params if p.node in reached]
    added = gradients(Tensor(rest, step), penalized) if rest is not None and penalized else []
    extra = [ir.Output(f"gradient {i}", g.node) for i, g in enumerate([*slopes, *added])]
    expanded = expand_gradients(ir.IRGraph((*whole.outputs, *extra), whole.updates, whole.inputs))
    nodes = [o.node for o in expanded.outputs[len(whole.outputs) :]]
    by_name = {p.name: g for p, g in zip(penalized, nodes[len(params) :], strict=True)}
    outputs = expanded.outputs[: len(whole.outputs)]
    result = ir.IRGraph(outputs, expanded.updates, expanded.inputs)
    return result, nodes[: len(params)], [by_name.get(p.name) for p in params]


def _over(step: Graph, whole: ir.IRGraph) -> Graph:
    """A copy of the step whose outputs and updates are those of the expanded graph."""
    final = step.copy(updates=False)
    kept_names = step.kept
    final.set_outputs({o.name: Tensor(o.node, final) for o in whole.outputs if o.name not in kept_names})
    for update in whole.updates:
        final.update(final.states[update.name], Tensor(update.node, final))
    return final


def _with_noise(graph: Graph, sums: Sequence[Tensor], clip: Tensor, privacy: Privacy) -> list[Tensor]:
    """(sum + clip · noise · N(0, 1)) / rows, with random numbers keyed by (seed, step)."""
    assert privacy.noise is not None
    assert privacy.rows is not None
    deviation, rows = clip * graph.scalar(NOISE, privacy.noise), graph.scalar(ROWS, privacy.rows)
    with graph.scope("privacy"):
        draws = _normal_numbers(graph, sums)
    return [(g + z * deviation.astype(g.dtype)) / rows.astype(g.dtype) for g, z in zip(sums, draws, strict=True)]


def _normal_numbers(graph: Graph, like: Sequence[Tensor]) -> list[Tensor]:
    """Standard normal numbers for every tensor, from one draw.

    A block of the generator has four words: two pairs for Box and Muller, of which both numbers are used.
    """
    counts = [math.prod(n for n in g.shape if isinstance(n, int)) for g in like]  # sizes of parameters are integers
    dtype = "float64" if any(g.node.type.dtype == float64 for g in like) else "float32"
    blocks = (sum(counts) + 3) // 4
    words = graph.random_uniform((blocks, 4), dtype=dtype).permute((1, 0))
    w = [words[i : i + 1] for i in range(4)]
    numbers = concat([*_normal_pair(w[0], w[1]), *_normal_pair(w[2], w[3])], 0).reshape((4 * blocks,))
    ends = list(accumulate(counts))
    parts = [numbers[end - count : end] for end, count in zip(ends, counts, strict=True)]
    return [z.reshape(g.shape).astype(g.dtype) for z, g in zip(parts, like, strict=True)]


def _normal_pair(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Two standard normal numbers from two uniform ones, by the transform of Box and Muller.

    The angle is 2πx for x in [-1/2, 1/2), whose sine and cosine follow from those of πx: short polynomials.
    """
    radius, x = sqrt(-2.0 * log(1.0 - u)), v - 0.5
    square = x * x
    sine, cosine = x * _polynomial(SINE, square), _polynomial(COSINE, square)
    return radius * (1.0 - 2.0 * sine * sine), radius * (2.0 * sine * cosine)


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """The polynomial with these coefficients, in ascending order of powers, by Horner's rule."""
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        value = value * x + coefficient
    return value


def _refuse_mixing(node: Node) -> NoReturn:
    line = "" if node.line is None else node.line.error_note
    raise GraphError(
        f"privacy=: `{node.op}` computes a value of one row from other rows, as a batch norm does, so gradients of "
        f"rows cannot be clipped. Normalise each row by itself: ws.nn.GroupNorm, ws.nn.LayerNorm.{line}"
    )


def _refuse_updates(graph: Graph, batch: str) -> None:
    for name, value in graph.updates.items():
        if depends_on(value.node, batch):
            fail(
                GraphError,
                f"privacy=: the new value of the state {name!r} depends on the rows without clipping or noise, as the "
                "running statistics of a batch norm do. Normalise each row: ws.nn.GroupNorm, ws.nn.LayerNorm.",
            )

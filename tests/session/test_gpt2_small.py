"""GPT-2 small (12 layers, 124 million parameters) with AdamW: the plan of its whole training step, as integers.

Nothing is run: a plan is data.  `pytest -s` prints the integers, with fusion and with the e-graph off beside them.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

import wholestep as ws
from tests.models.gpt2 import NAMED, PRIMITIVE, Config, Words, gpt2
from wholestep.compiler.backends.cpu.partition.threads import ThreadPartitioner
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan, Space

SMALL = Config()
BATCH = 4
FLOAT = 4  # bytes
UPDATE = 3 * 2  # AdamW reads and writes a weight and its two moments
AT_MOST = 20  # kernels per layer: forward, backward and update
PLAIN, REWRITTEN = ws.CompileOptions(egraph=False), ws.CompileOptions(egraph=True)


@functools.cache
def plan_of(layers: int, words: Words = NAMED, options: ws.CompileOptions = PLAIN) -> Plan:
    graph = gpt2(Config(layers=layers), words)
    return ws.compile_training_graph(graph, optimizer=ws.AdamW(), batch_size=BATCH, options=options)[0]


def integers(plan: Plan) -> tuple[int, int, int]:
    return len(plan.kernels), plan.flops, plan.bytes_moved


def show(title: str, plan: Plan) -> None:
    kernels, flops, moved = integers(plan)
    print(f"{title:<48}{kernels:>6} kernels {flops:>18,} flops {moved:>16,} bytes {plan.regions:>5} regions")


# -- kernels ---------------------------------------------------------------------------------------------------------


def test_a_layer_is_twenty_kernels() -> None:
    """7 forward and 7 backward along the rows, 4 weights with their biases, 2 norms' weights; 10 around the layers."""
    plan, short = plan_of(12), plan_of(2)
    show("GPT-2 small, 12 layers", plan)
    show("GPT-2 small, 2 layers", short)
    show("  fusion off", plan_of(2, options=replace(PLAIN, fuse=False)))
    per_layer, rest = divmod(len(plan.kernels) - len(short.kernels), 10)
    assert (per_layer, rest) == (AT_MOST, 0)
    assert len(plan.kernels) - 12 * per_layer == 10


def gradients(plan: Plan, of: str) -> list[Kernel]:
    return [k for k in plan.kernels if f"gradient of {of}" in k.origin]


def test_each_norm_is_one_kernel_forward_and_two_backward() -> None:
    plan, norms = plan_of(12), 2 * 12 + 1
    forward = [k for k in plan.kernels if "layer_norm" in k.origin]
    assert [k.kind for k in forward] == [Kind.NEST] * norms
    backward = gradients(plan, "layer_norm")
    assert [sum(k.kind is kind for k in backward) for kind in (Kind.NEST, Kind.COLUMNS)] == [norms, norms]
    assert len(backward) == 2 * norms


def test_the_loss_is_one_kernel_with_its_gradient_and_one_for_the_mean() -> None:
    plan = plan_of(12)
    wide = [k for k in plan.kernels if k.kind is Kind.NEST and SMALL.vocabulary in k.axes]
    assert wide == gradients(plan, "cross_entropy")
    assert len(wide) == 1
    assert [k.origin for k in plan.kernels if len(k.axes) == 1] == [("sum", "div")]


def test_nothing_holds_a_score_for_every_pair_of_positions() -> None:
    for buffer in plan_of(12).buffers:
        assert sum(e == SMALL.context for e in buffer.type.shape) < 2, f"buffer {buffer.id}: {buffer.type}"


def test_equal_layers_are_rendered_once() -> None:
    """Compile time grows with distinct kernels, not with depth."""
    assert render(plan_of(12)).count("static void") == render(plan_of(4)).count("static void")


# -- bytes -----------------------------------------------------------------------------------------------------------


def layer_floor(rows: int, d: int) -> int:
    """Elements that one layer must move: every value written once and read by each kernel that cannot do without.

    A contraction's operands are in memory, since each element of them is used many times; a norm is a kernel over
    rows, since it needs the whole row first; a weight's gradient needs all rows first; attention keeps its scores.
    """
    activations = (  # per row, in units of d
        (1 + 4) * 2  # the stream before each norm: written; norm, residual sum, norm's gradient, its weights' gradient
        + (1 + 2) * 2  # the norms' results: written; product, weight's gradient
        + 3 * (1 + 2)  # queries, keys and values: written; attention, its gradient
        + 1 * (1 + 2)  # what attention gives: written; product, weight's gradient
        + 4 * (1 + 2)  # gelu: written; product, weight's gradient
        + 4 * (1 + 1)  # gelu's argument or derivative: written; its gradient
        + 4 * (1 + 2)  # the gradient before gelu: written; product, weight's gradient with the bias's
        + (1 + 2) * 2  # the gradients of the norms' results: written; norm's gradient, its weights' gradient
        + (1 + 3) * 2  # the gradient of the stream: written; product, weight's gradient, sum with the next one
        + 1 * (1 + 1)  # the gradient of what attention gives: written; attention's gradient
        + 3 * (1 + 2)  # the gradients of queries, keys and values: written; product, weight's gradient
    )
    matrices = (3 + 1 + 4 + 4) * d * d * (1 + 1 + UPDATE)  # product forward, product backward
    biases = (3 + 1 + 4 + 1) * d * (1 + UPDATE)
    norms = 2 * d * (2 + UPDATE) + 2 * d * (1 + UPDATE)  # the backward pass reads the gain again
    return rows * d * activations + matrices + biases + norms


def floor(config: Config, batch: int) -> int:
    """Bytes that the step must move."""
    rows, d, v = batch * config.context, config.width, config.vocabulary
    embedding = v * d * (1 + 1 + UPDATE)  # the output layer: forward, backward
    lookup = (
        rows * d + config.context * d * (1 + UPDATE) + 2 * rows
    )  # rows of tokens; positions; tokens, there and back
    last = (
        rows
        * d
        * (
            (1 + 3)  # the stream after the last layer: written; norm, its gradient, its weights' gradient
            + (1 + 2)  # the last norm's result: written; product, weight's gradient
            + (1 + 2)  # its gradient: written; norm's gradient, its weights' gradient
            + (1 + 2)  # the gradient of the embedded tokens: written; positions' and tokens' gradients
        )
    )
    logits = rows * v * ((1 + 1) + (1 + 2))  # written; loss.  Their gradient: written; product, weight's gradient
    loss = rows * (1 + 2) + 1  # labels; a loss per row: written, then added up
    norm = d * (2 + UPDATE) + d * (1 + UPDATE)
    return FLOAT * (config.layers * layer_floor(rows, d) + embedding + lookup + last + logits + loss + norm)


def test_bytes_are_near_the_floor() -> None:
    plan, least = plan_of(12), floor(SMALL, BATCH)
    print(f"floor {least:,} bytes; moved {plan.bytes_moved:,}: {plan.bytes_moved / least:.3f} times")
    assert least < plan.bytes_moved <= 1.2 * least


def test_the_arena_is_smaller_than_its_buffers() -> None:
    """Bytes are used again once their value was read for the last time."""
    plan = plan_of(12)
    kept = sum(b.bytes for b in plan.buffers if b.space is Space.ARENA)
    assert plan.arena_bytes < 0.8 * kept


# -- depth -----------------------------------------------------------------------------------------------------------


def test_planning_stays_in_proportion_to_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer is looked at as often in a deep network as in a shallow one."""
    looked = [0]
    region = ThreadPartitioner.region

    def counted(self: ThreadPartitioner, *rest: object) -> int:
        looked[0] += 1
        return region(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ThreadPartitioner, "region", counted)
    counts = {}
    for layers in (3, 12):
        looked[0] = 0
        graph = gpt2(Config(layers, 64, 4, 65, 64))
        ws.compile_training_graph(graph, optimizer=ws.AdamW(), batch_size=16, options=PLAIN)
        counts[layers] = looked[0]
    assert counts[12] < 4.5 * counts[3], counts


# -- from primitives -------------------------------------------------------------------------------------------------


def test_written_from_primitives_it_is_the_same_plan() -> None:
    """The e-graph finds the names; without it, every score is stored."""
    named, primitive, off = plan_of(12, NAMED, REWRITTEN), plan_of(12, PRIMITIVE, REWRITTEN), plan_of(2, PRIMITIVE)
    show("12 layers by name, e-graph on", named)
    show("12 layers from primitives, e-graph on", primitive)
    show("2 layers by name", plan_of(2))
    show("2 layers from primitives, e-graph off", off)
    assert integers(primitive) == integers(named)
    (kernels, flops, moved), plain = integers(primitive), integers(plan_of(12))
    assert (kernels, moved) == (plain[0], plain[2])
    assert flops <= plain[1]
    assert all(a < b for a, b in zip(integers(plan_of(2)), integers(off), strict=True))

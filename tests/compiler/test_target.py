"""Targets are plain data: whatever differs shows in the key, and what the compiler does follows from the fields."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler import native
from tests.compiler.targets import HERE, make_plan
from tests.support.oracles import assert_close
from tests.support.sessions import mlp
from wholestep.compiler.backends.cpu.cost_model import Prices, Settings, settings_of
from wholestep.compiler.backends.cpu.render import language
from wholestep.compiler.backends.cpu.target import AVX2, AVX512, AVX512BF16, PORTABLE
from wholestep.compiler.backends.cpu.target import TARGETS as CPUS
from wholestep.compiler.backends.cuda.target import TARGETS as GPUS
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DTYPES, bfloat16, float16, float32, float64
from wholestep.compiler.pipeline import Compiler, own_pass
from wholestep.compiler.plan.lower.routine_ops import ROUTINES
from wholestep.compiler.target import OwnPass, Target, read_costs
from wholestep.errors import GraphError, OptionError
from wholestep.steps.train import train_graph

EVERY = {**CPUS, **GPUS}
SM_90 = GPUS["cuda/sm_90"]
NO_EGRAPH = ws.CompileOptions(egraph=False)


# -- the record ------------------------------------------------------------------------------------------------------


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value} otherwise"
    if isinstance(value, frozenset):
        return value | {"another"}
    if isinstance(value, tuple):
        return value[:-1] if value else ("another",)
    return {**value, "another": next(iter(value.values()))}


def otherwise(record: Any) -> Iterator[tuple[str, Any]]:
    """The record with one field changed, and which, for every field of it and of the records in it."""
    for f in fields(record):
        value = getattr(record, f.name)
        if is_dataclass(value):
            yield from ((f"{f.name}.{path}", replace(record, **{f.name: made})) for path, made in otherwise(value))
        else:
            yield f.name, replace(record, **{f.name: changed(value)})


@pytest.mark.parametrize("target", [PORTABLE, SM_90], ids=str)
def test_every_field_is_part_of_the_key(target: Target) -> None:
    others = dict(otherwise(target))
    assert {"name", "costs.byte", "costs.weights", "limits.batch_parts", "fusion.dot_epilogues"} <= others.keys()
    assert {"lowering.windows", "composites", "dtypes", "blocks_columns"} <= others.keys()
    keys = Counter([target.key, *(other.key for other in others.values())])
    assert set(keys.values()) == {1}
    assert all(other != target for other in others.values())


def test_targets_are_values() -> None:
    assert replace(AVX2, name="cpu/avx512") == AVX512
    assert replace(AVX2, name="cpu/avx512").key == AVX512.key
    assert len({*EVERY.values(), replace(AVX2)}) == len(EVERY) == len({t.key for t in EVERY.values()})
    assert {t.family for t in CPUS.values()} == {"cpu"}
    assert {t.family for t in GPUS.values()} == {"cuda"}
    with pytest.raises(AttributeError, match="cannot assign"):
        AVX2.name = "cpu/other"  # type: ignore[misc]


def test_keys_are_the_same_in_every_process() -> None:
    """Sets of strings have another order in each."""
    text = (
        "from wholestep.compiler.backends.cpu.target import TARGETS as A\n"
        "from wholestep.compiler.backends.cuda.target import TARGETS as B\n"
        "print([t.key for t in {**A, **B}.values()])"
    )
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str([t.key for t in EVERY.values()])


def test_all_cpus_plan_alike_but_for_what_they_compute_with() -> None:
    for target in CPUS.values():
        assert replace(target, name=AVX2.name, dtypes=AVX2.dtypes) == AVX2
    assert AVX512BF16.dtypes == {**AVX512.dtypes, "bfloat16": "float32"}


@pytest.mark.parametrize("target", EVERY.values(), ids=str)
def test_what_a_target_names_exists(target: Target) -> None:
    assert all(OPS[op].family is Family.COMPOSITE for op in target.composites)
    assert {*target.dtypes.keys(), *target.dtypes.values()} <= DTYPES.keys()
    named = (*target.lowering.windows, *target.lowering.primitives)
    assert named
    assert [own_pass(p, target).__name__ for p in named] == [p.path.partition(":")[2] for p in named]


def test_the_cpu_has_a_kernel_for_every_composite_that_it_keeps() -> None:
    assert PORTABLE.composites == {op for op in PORTABLE.composites if op in language.OPS} | (
        ROUTINES.keys() - {"exchange"}
    )


# -- costs -----------------------------------------------------------------------------------------------------------


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no cost table .*sm_91\.json.*Measure one.*costs=read_costs"):
        read_costs(tmp_path / "sm_91.json")


@pytest.mark.parametrize("target", EVERY.values(), ids=str)
def test_a_table_says_where_its_numbers_are_from(target: Target) -> None:
    origins = {"cpu": ("measured",), "cuda": ("measured", "derived from sm_90's"), "reference": ("estimated",)}
    assert target.costs.origin.startswith(origins[target.family])
    assert min(target.costs.operation, target.costs.byte, target.costs.product, *target.costs.weights.values()) > 0
    assert target.costs.weights.keys() == PORTABLE.costs.weights.keys()


@pytest.mark.parametrize("kind", ["sm_90", "sm_89", "sm_86", "sm_80"])
def test_what_tensor_cores_multiply_costs_less(kind: str) -> None:
    plain, rounded = GPUS[f"cuda/{kind}"].costs, GPUS[f"cuda/{kind}+tf32"].costs
    assert plain.product_of(float32) == plain.product_of(float64) == plain.product
    assert plain.product_of(bfloat16) == plain.product_of(float16) == plain.half_product
    assert rounded == replace(plain, product=plain.tf32_product)
    assert 0 < plain.half_product < plain.tf32_product < plain.product
    assert "half and tf32 products" in plain.origin


def test_half_products_cost_what_others_do_where_nothing_else_is_known() -> None:
    assert PORTABLE.costs.product_of(bfloat16) == PORTABLE.costs.product == PORTABLE.costs.in_tf32().product


@pytest.mark.parametrize(("dear", "chosen"), [("recip", "neg"), ("neg", "recip")])
def test_the_e_graph_chooses_by_the_costs_of_the_target(dear: str, chosen: str) -> None:
    """1/eˣ is e⁻ˣ: what is cheaper depends on where."""
    g = ws.Graph()
    g.set_outputs([(1.0 / ws.exp(g.input("x", (64, 64)))).sum()])
    target = replace(
        HERE, costs=replace(HERE.costs, weights={"exp": 1.0, "recip": 1.0, "neg": 1.0, "div": 9.0, dear: 9.0})
    )
    found = ops(Compiler().run_stages(g.to_ir(), target, until="optimize_full"))
    assert found.keys() & {"recip", "neg", "div"} == {chosen}


# -- odd targets -----------------------------------------------------------------------------------------------------


def pooled_step() -> IRGraph:
    """A convolution, its pool, and the update of its weight: through the pool where the images are small enough."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 2, 6, 6)), g.input("y", ("batch", 3, 3, 3))
    w, v = g.parameter("w", (4, 2, 3, 3)), g.parameter("v", (3, 4, 1, 1))
    h = ws.max_pool2d(ws.conv2d(ws.tanh(ws.conv2d(x, w, padding=1)), v), 2)
    g.set_outputs([((h - y) ** 2).mean()])
    return train_graph(g, ws.SGD(lr=0.1))


def lowered(target: Target) -> IRGraph:
    return Compiler(NO_EGRAPH).run_stages(pooled_step(), target)


def ops(graph: IRGraph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


def test_composites_without_a_kernel_are_written_out() -> None:
    assert "tanh" in ops(lowered(HERE))
    plain = ops(lowered(replace(HERE, composites=HERE.composites - {"tanh"})))
    assert "tanh" not in plain
    assert plain.keys() & {"exp", "exp2", "expm1"}


def test_own_passes_are_those_of_the_target() -> None:
    assert ops(lowered(HERE))["pooled_grad_weight"] == 1
    assert parts_of(lowered(SM_90)) == [64]  # it has a separate pass
    plain = replace(HERE, lowering=replace(HERE.lowering, windows=HERE.lowering.windows[:-1]))
    assert not any(op.startswith("pooled") for op in ops(lowered(plain)))
    small = replace(HERE, limits=replace(HERE.limits, nearest_cache=64))
    assert not any(op.startswith("pooled") for op in ops(lowered(small)))


def parts_of(graph: IRGraph) -> list[int]:
    return [int(n.type.shape[0]) for n in graph.nodes if n.op == "pooled_grad_weight"]


@pytest.mark.parametrize("parts", [1, 5, 16])
def test_gradients_are_added_up_in_as_many_parts_as_the_target_says(parts: int) -> None:
    target = replace(HERE, limits=replace(HERE.limits, batch_parts=parts))
    graph = lowered(target)
    assert parts_of(graph) == [parts]
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=(7, *shape)).astype(np.float32)
        for name, shape in {"x": (2, 6, 6), "y": (3, 3, 3)}.items()
    }
    shapes = {name: tuple(int(e) for e in node.type.shape) for name, node in graph.states().items()}
    state = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    ran = native.run_plan(make_plan(graph, {"batch": 7}, target=target), inputs, state, {"batch": 7})
    unlowered = Compiler(NO_EGRAPH).run_stages(pooled_step(), HERE, until="autodiff")
    expected = interpret(unlowered, inputs=inputs, state=state, sizes={"batch": 7})
    for name, value in (expected.state | expected.outputs).items():
        assert_close((ran.state | ran.outputs)[name], value)


def test_the_scheduler_goes_by_the_sizes_of_the_target() -> None:
    larger = replace(HERE, limits=replace(HERE.limits, cache=4 * HERE.limits.cache, threads=7))
    assert settings_of(HERE) == Settings(Prices(threads=2))
    assert settings_of(larger) == Settings(Prices(threads=7), relief=4 << 20, delay=4 << 20, scores=512 << 10)


def test_a_buffer_is_no_larger_than_the_target_takes() -> None:
    def plan_within(most: int) -> None:
        target = replace(SM_90, limits=replace(SM_90.limits, largest_buffer=most))
        Compiler(NO_EGRAPH).plan(train_graph(mlp(inputs=50, hidden=64), ws.SGD()), {"batch": 4}, target)

    plan_within(50 * 64 * 4)
    match = (
        r"the state 'w1', float32\[50, 64\], takes 12,800 bytes at capacity; a buffer on cuda/sm_90 has at most 12,799"
    )
    with pytest.raises(GraphError, match=match):
        plan_within(50 * 64 * 4 - 1)


def test_a_pass_from_anywhere_may_be_named() -> None:
    """A backend outside of the package brings its own; one that fails and is not needed is left out."""
    brought = replace(HERE.lowering, primitives=(*HERE.lowering.primitives, OWN))
    compiler = Compiler(NO_EGRAPH)
    seen.clear()
    compiler.plan(pooled_step(), {"batch": 4}, replace(HERE, lowering=brought))
    assert seen == [HERE.name]
    failing = replace(HERE.lowering, primitives=(replace(OWN, path=f"{__name__}:break_down"),))
    _, report = compiler.plan(pooled_step(), {"batch": 4}, replace(HERE, lowering=failing))
    assert "break_down was left out: ZeroDivisionError" in str(report)
    needed = replace(failing, primitives=(replace(OWN, path=f"{__name__}:break_down", needed=True),))
    with pytest.raises(ZeroDivisionError):
        compiler.plan(pooled_step(), {"batch": 4}, replace(HERE, lowering=needed))


seen: list[str] = []
OWN = OwnPass(f"{__name__}:note_target", takes_target=True)


def note_target(graph: IRGraph, target: Target) -> IRGraph:
    seen.append(target.name)
    return graph


def break_down(graph: IRGraph, target: Target) -> IRGraph:
    raise ZeroDivisionError(f"of {len(graph.nodes)} nodes for {target}")

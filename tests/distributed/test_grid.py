"""Ranks in a grid: collectives along each of its axes, side by side in the interpreter and in threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.distributed.support.trees import tree_sum
from tests.distributed.test_shards import trained
from tests.support.compilers import quick
from wholestep.compiler.backend import LoadContext
from wholestep.compiler.backends.cpu.runtime.simulated_ranks import ThreadRanksProgram
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.mesh import AXES, Mesh
from wholestep.compiler.ir.printer import parse_graph, print_graph
from wholestep.compiler.ir.semantics.interpret import interpret_on_ranks
from wholestep.compiler.ir.type_rules.collectives import MODEL_RANK, RANK
from wholestep.compiler.ir.types import Dim, TensorType, float32
from wholestep.compiler.passes.distribute.bucket_collectives import bucket
from wholestep.compiler.passes.distribute.placement.placements import MeshAxis, Mixed, Sharded
from wholestep.compiler.passes.distribute.placement.rules import placements_of
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.runtime.state.state import State
from wholestep.errors import OptionError
from wholestep.options import CompileOptions
from wholestep.session.building.arguments import SessionArguments

GRIDS = [(2, 2), (1, 2), (2, 3), (3, 2)]
RNG = np.random.default_rng(16)


def leaf(name: str, *shape: int | str) -> Node:
    extents = tuple(Dim.symbol(e) if isinstance(e, str) else e for e in shape)
    return Node("input", (), at.InputAttrs(name, TensorType(extents, float32)))


def members(grid: tuple[int, int], rank: int, axis: str) -> list[int]:
    """The ranks beside one, from a picture of the grid."""
    picture = np.arange(grid[0] * grid[1]).reshape(grid)
    ((d, m),) = np.argwhere(picture == rank)
    return (picture[:, m] if axis == "data" else picture[d]).tolist()  # type: ignore[no-any-return]


def every_collective(grid: tuple[int, int]) -> IRGraph:
    """Each along each axis, of the sum over the other one, so that both follow each other."""
    size, sizes = grid[0] * grid[1], dict(zip(AXES, grid, strict=True))
    x, y = leaf("x", 2 * size, 3), leaf("y", 2, 3)
    made = []
    for axis, other in (AXES, AXES[::-1]):
        whole, part = at.GroupAttrs(axis=axis), at.GroupAttrs(sizes[axis], axis)
        summed = b.make("all_reduce", (b.make("all_reduce", (x,), whole),), at.GroupAttrs(axis=other))
        nodes = {
            "all_reduce": b.make("all_reduce", (x,), whole),
            "reduce_scatter": b.make("reduce_scatter", (x,), part),
            "all_gather": b.make("all_gather", (y,), part),
            "broadcast": b.make("broadcast", (y,), whole),
            "both": b.mul(summed, x),
        }
        made += [Output(f"{axis} {name}", node) for name, node in nodes.items()]
    return IRGraph(tuple(made), (), (x, y))


@pytest.mark.parametrize("grid", GRIDS)
def test_every_collective_along_each_axis(grid: tuple[int, int]) -> None:
    graph, size = every_collective(grid), grid[0] * grid[1]
    xs, ys = RNG.standard_normal((size, 2 * size, 3)), RNG.standard_normal((size, 2, 3))
    given = [{"inputs": {"x": xs[r], "y": ys[r]}} for r in range(size)]
    for tried in (graph, bucket(graph), parse_graph(print_graph(graph))):
        for rank, result in enumerate(interpret_on_ranks(tried, given, model=grid[1])):
            found = result.outputs
            for axis in AXES:
                beside = members(grid, rank, axis)
                total, place = tree_sum([xs[r] for r in beside]), beside.index(rank)
                np.testing.assert_array_equal(found[f"{axis} all_reduce"], total)
                np.testing.assert_array_equal(found[f"{axis} reduce_scatter"], np.split(total, len(beside))[place])
                np.testing.assert_array_equal(found[f"{axis} all_gather"], np.concatenate([ys[r] for r in beside]))
                np.testing.assert_array_equal(found[f"{axis} broadcast"], ys[beside[0]])
                np.testing.assert_allclose(found[f"{axis} both"], xs.sum(0) * xs[rank], rtol=1e-12, atol=1e-12)


def test_exchanges_of_two_axes_are_two() -> None:
    found = [n.attrs for n in bucket(every_collective((2, 2))).nodes if n.op == "exchange"]
    assert {(a.kind, a.axis) for a in found} == {  # type: ignore[attr-defined]
        (kind, axis) for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast") for axis in AXES
    }


@pytest.mark.parametrize("grid", GRIDS)
def test_a_rank_knows_its_place(grid: tuple[int, int]) -> None:
    found = Mesh(*grid)
    for rank in range(found.size):
        for axis in AXES:
            beside = members(grid, rank, axis)
            assert list(found.group(axis, rank)) == beside
            assert (found.coordinate(axis, rank), found.axis_size(axis)) == (beside.index(rank), len(beside))


def test_ranks_along_the_model_axis_have_the_same_rows() -> None:
    """A sum over them leaves rows what they are; one over ranks with other rows adds up strangers."""
    x = leaf("x", "batch", 4)
    summed = {axis: b.make("all_reduce", (x,), at.GroupAttrs(axis=axis)) for axis in AXES}
    gathered = b.make("all_gather", (x,), at.GroupAttrs(2, "model"))
    turned = b.make("all_gather", (b.permute(x, (1, 0)),), at.GroupAttrs(2, "model"))
    kinds = placements_of([*summed.values(), gathered, turned], MeshAxis.of_batch("batch"))
    assert kinds[summed["model"]] == Sharded(0)
    assert kinds[turned] == Sharded(1)
    assert isinstance(kinds[summed["data"]], Mixed)
    assert isinstance(kinds[gathered], Mixed)


# -- threads -----------------------------------------------------------------------------------------------------


def own_numbers(x: Node) -> Node:
    """An input times a number that each rank has to itself: of its place along each axis."""
    places = [b.cast(b.size(Dim.symbol(s)), float32) for s in (RANK, MODEL_RANK)]
    factor = b.add(b.mul(places[0], b.full(0.37, TensorType((), float32))), b.make("exp", (places[1],)))
    return b.mul(x, b.expand_to(factor, x.type.shape, ()))


def collectives_of_threads(grid: tuple[int, int], axes: Sequence[str]) -> IRGraph:
    """Every collective along some axes, one behind the other."""
    given, made = leaf("x", 2 * grid[0] * grid[1], 3), dict[str, Node]()
    x = own = own_numbers(given)
    for axis in axes:
        ranks = Mesh(*grid).axis_size(axis)
        x = b.make("all_reduce", (b.mul(x, own),), at.GroupAttrs(axis=axis))
        part = b.make("reduce_scatter", (b.add(x, own),), at.GroupAttrs(ranks, axis))
        made |= {
            f"{axis} all_reduce": x,
            f"{axis} reduce_scatter": part,
            f"{axis} all_gather": b.make("all_gather", (b.mul(part, part),), at.GroupAttrs(ranks, axis)),
            f"{axis} broadcast": b.make("broadcast", (part,), at.GroupAttrs(axis=axis)),
        }
    return IRGraph(tuple(Output(name, node) for name, node in made.items()), (), (given,))


@pytest.mark.parametrize(("grid", "axes"), [*((grid, AXES) for grid in GRIDS), ((2, 2), AXES[1:])])
def test_threads_exchange_what_the_interpreter_says(grid: tuple[int, int], axes: Sequence[str]) -> None:
    """Along the model axis alone a program is given all rows: its group is another one."""
    graph, size = collectives_of_threads(grid, axes), grid[0] * grid[1]
    where = SessionArguments(shards=grid, options=quick(), threads=1).placement()
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(
        graph, {RANK: max(1, grid[0] - 1), MODEL_RANK: grid[1] - 1}, where.device.target
    )
    scratch = where.device.scratch()
    scratch.reserve(plan, where.threads)
    program = where.device.load(plan, LoadContext(where, State(), scratch))
    assert isinstance(program, ThreadRanksProgram)
    x = RNG.standard_normal((2 * size, 3)).astype(np.float32)
    program.bind("x", x)
    sizes = [{RANK: r // grid[1], MODEL_RANK: r % grid[1]} for r in range(size)]
    given = [{"inputs": {"x": x}, "sizes": s} for s in sizes]
    for _ in range(2):
        program.launch({})
        for rank, wanted in enumerate(interpret_on_ranks(graph, given, model=grid[1])):
            for name, value in wanted.outputs.items():
                found = program.programs[rank].read(name)
                np.testing.assert_allclose(found, value, rtol=2e-6, atol=1e-6, err_msg=f"{name} on {rank}")


@pytest.mark.parametrize(
    ("case", "grid"),
    [("dropout, weights of rows, metrics, clipping", (2, 2)), ("micro-batches", (3, 2))],
)
def test_where_no_layer_is_divided_the_bits_are_those_of_the_data_axis(case: str, grid: tuple[int, int]) -> None:
    (expected, wanted), (found, history) = trained(case, grid[0]), trained(case, grid)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in expected.items()}
    assert [e.logs for e in history.epochs] == [e.logs for e in wanted.epochs]


@pytest.mark.parametrize("shards", [(2, 0), (2, 2, 2), (20, 20), (2, True), 0, "2"])
def test_what_is_no_grid_is_refused(shards: Any) -> None:
    with pytest.raises(OptionError, match=r"expected an integer from 1 to \d+, or two of them, \(data, model\)"):
        SessionArguments(shards=shards).placement()

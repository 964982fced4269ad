"""Indices are held to the table that they are used on: each part of an input to its own, and nothing else to any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.ir.graph import IRGraph, Output
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.input_bounds import index_bounds
from wholestep.compiler.plan.model.kernel import Bound
from wholestep.errors import InputError
from wholestep.session.running.inputs import BoundInput

USERS, FILMS = 7, 4
ALL = (0, 0, 1)  # of an axis


def ratings() -> ws.Graph:
    """Two columns of one input, as indices of two tables."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 2), "int32"), g.input("y", ("batch",))
    users, films = g.parameter("users", (USERS, 3), init=0.5), g.parameter("films", (FILMS, 3), init=0.5)
    score = (ws.gather(users, x[:, 0]) * ws.gather(films, x[:, 1])).sum(1)
    g.set_outputs({"loss": ((score - y) * (score - y)).mean(), "score": score})
    return g


@pytest.fixture(scope="module")
def session() -> ws.Session:
    options = ws.CompileOptions(compiler="cc -O0", verify=False)
    return ws.build_session(ratings(), optimizer=ws.SGD(lr=0.1), batch_size=4, options=options)


VALID = np.array([[USERS - 1, 0], [0, FILMS - 1], [5, 3], [4, 1]], np.int32)
Y = np.ones(4, np.float32)


def test_each_column_is_held_to_its_own_table(session: ws.Session) -> None:
    for _ in range(2):  # checked in full, then as last time
        assert np.isfinite(session.step(x=VALID, y=Y).loss)
    session.run(x=np.tile(VALID, (3, 1)), y=np.tile(Y, 3))


def test_a_plan_keeps_them(session: ws.Session) -> None:
    assert load(dump(session.plan)).bounds == session.plan.bounds
    assert {(b.size, b.part) for b in session.plan.bounds} == {(USERS, (ALL, (0, 1, 1))), (FILMS, (ALL, (1, 2, 1)))}


BAD = [
    ((1, 1), FILMS, r"indices from 0 to 3 in \[:, 1\]; received 4 at position 1, 1"),
    ((2, 0), USERS, r"indices from 0 to 6 in \[:, 0\]; received 7 at position 2, 0"),
    ((3, 1), -1, r"in \[:, 1\]; received -1 at position 3, 1"),
]


@pytest.mark.parametrize(("place", "value", "text"), BAD)
def test_what_is_outside_of_it_is_refused(place: tuple[int, int], value: int, text: str, session: ws.Session) -> None:
    before = np.array(session.get("users"))
    session.step(x=VALID, y=0 * Y)
    session.set("users", before)
    wrong = VALID.copy()
    wrong[place] = value
    with pytest.raises(InputError, match=text):
        session.step(x=wrong, y=Y)
    with pytest.raises(InputError, match="holds indices"):
        session.run(x=wrong, y=Y)
    np.testing.assert_array_equal(session.get("users"), before)


def test_so_it_is_in_fit() -> None:
    class Net(ws.nn.Module):
        def __init__(self) -> None:
            self.users, self.films = ws.nn.Embedding(2000, 2), ws.nn.Embedding(600, 2)

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return (self.users(x[:, 0]) * self.films(x[:, 1])).sum(1)

    x = np.array([[1999, 0], [3, 599], [1000, 7], [5, 5]], np.int32)
    history = ws.fit(Net(), (x, Y), loss="mse", epochs=1, batch_size=4, progress=False)
    assert np.isfinite(history.final_loss())
    with pytest.raises(InputError, match=r"0 to 599 in \[:, 1\]; received 600"):
        ws.fit(Net(), (x + np.array([0, 1]), Y), loss="mse", epochs=1, batch_size=4, progress=False)


# -- which parts are told -------------------------------------------------------------------------------------------

Part = tuple[tuple[int, int, int], ...] | None
PARTS: dict[str, tuple[Callable[[Any], Any], Part]] = {
    "all": (lambda x: x, ()),
    "turned": (lambda x: x.T, ()),
    "flat": (lambda x: x.reshape(-1), ()),
    "a column": (lambda x: x[:, 1], (ALL, (1, 2, 1))),
    "the last column": (lambda x: x[:, -1], (ALL, (5, 6, 1))),
    "some columns": (lambda x: x[:, 1:4], (ALL, (1, 4, 1))),
    "every second": (lambda x: x[:, ::2], (ALL, (0, 6, 2))),
    "all but the last": (lambda x: x[:, :-1], (ALL, (0, 5, 1))),
    "of a part": (lambda x: x[:, 1:4][:, 1:2], (ALL, (2, 3, 1))),
    "turned part": (lambda x: x[:, 1:4].T, (ALL, (1, 4, 1))),
    "part of what is turned": (lambda x: x.T[1:4], (ALL, (1, 4, 1))),
    "part with an axis more": (lambda x: x.reshape(x.shape[0], 6, 1)[:, 2:3], (ALL, (2, 3, 1))),
    "the first row": (lambda x: x[0], ((0, 1, 1), ALL)),
    "repeated": (lambda x: x[:, 1:2].expand(x.shape[0], 3), (ALL, (1, 2, 1))),
    "cannot be told": (lambda x: x.reshape(x.shape[0], 2, 3)[:, 1], None),
    "rows but the first": (lambda x: x[1:], ((1, 0, 1), ALL)),
    "rows but the last": (lambda x: x[:-1], ((0, -1, 1), ALL)),
    "the last row": (lambda x: x[-1], ((-1, 0, 1), ALL)),
    "every second of a part": (lambda x: x[:, ::2][:, 1:], None),
}


def bounds_of(take: Callable[[Any], Any]) -> tuple[Bound, ...]:
    g = ws.Graph()
    x, table = g.input("x", ("batch", 6), "int32"), g.parameter("table", (9, 2))
    g.set_outputs({"y": ws.gather(table, take(x)).sum()})
    return index_bounds(g.to_ir())


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str) -> None:
    take, part = PARTS[name]
    found = bounds_of(take)
    assert [b.part for b in found] == ([] if part is None else [part])
    assert all((b.input, b.size) == ("x", 9) for b in found)


def test_parts_that_make_up_the_whole_are_the_whole() -> None:
    """Tokens and the tokens that follow them: checked as one array, without a part of it being looked for."""
    for takes, parts in (
        ((lambda x: x[:, :-1], lambda x: x[:, 1:]), [()]),
        ((lambda x: x[:, :2], lambda x: x[:, 2:5], lambda x: x[:, 5]), [()]),
        ((lambda x: x[:, :2], lambda x: x), [()]),
        ((lambda x: x[:, :2], lambda x: x[:, 3:]), [(ALL, (0, 2, 1)), (ALL, (3, 6, 1))]),
        ((lambda x: x[:, ::2], lambda x: x[:, 1::2]), [(ALL, (0, 6, 2)), (ALL, (1, 6, 2))]),
    ):
        g = ws.Graph()
        x, table = g.input("x", ("batch", 6), "int32"), g.parameter("table", (9, 2))
        g.set_outputs({f"y{i}": ws.gather(table, take(x)).sum() for i, take in enumerate(takes)})
        assert [b.part for b in index_bounds(g.to_ir())] == parts


@pytest.mark.parametrize("name", [n for n, (_, part) in PARTS.items() if part is not None])
def test_a_part_is_what_the_lookup_reads(name: str) -> None:
    """Every element inside is refused when it is wrong, and none outside."""
    take, part = PARTS[name]
    assert part is not None
    g = ws.Graph()
    out = take(g.input("x", (4, 6), "int32"))
    numbers = np.arange(24, dtype=np.int32).reshape(4, 6)
    read = {int(v) for v in np.ravel(interpreted(out, numbers))}
    item = BoundInput("x", g.input("other", (4, 6), "int32").node.type, [Bound("x", 100, None, part)])
    for value in range(24):
        wrong = np.where(numbers == value, 100, numbers)
        if value in read:
            with pytest.raises(InputError, match=f"at position {value // 6}, {value % 6}"):
                item.check_bounds(wrong, {})
        else:
            item.check_bounds(wrong, {})


def interpreted(out: ws.Tensor, numbers: np.ndarray) -> np.ndarray:
    graph = IRGraph((Output("y", out.node),))
    return interpret(graph, inputs={"x": numbers}).outputs["y"]


class Typed(ws.nn.Module):
    """A table that is read at one row only, known while compiling, beside a product over its columns."""

    def __init__(self) -> None:
        self.table, self.out = ws.nn.Embedding(2, 32), ws.nn.Linear(4, 32)

    def forward(self, x: Any) -> Any:
        y = self.out(x)
        return (y + self.table(ws.zeros_like(y[:, 0], "int64"))) * 2.0


def test_an_index_that_is_a_number_is_written_as_one() -> None:
    net = Typed()
    session = ws.build_session(
        net, inputs=ws.Spec((4, 4)), targets=ws.Spec((4, 32)), loss="mse", optimizer=ws.SGD(lr=0.1),
        options=ws.CompileOptions(compiler="cc -O0", verify=False),
    )  # fmt: skip
    x, state = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(4, 4), net.state_dict()
    weight, bias, first = (np.array(state[n]) for n in ("out.weight", "out.bias", "table.weight"))
    wanted = ((x @ weight.T + bias + first[0]) * 2.0) ** 2
    assert session.step(x=x, labels=np.zeros((4, 32), np.float32)).loss == pytest.approx(wanted.mean(), rel=1e-5)
    after = net.state_dict()["table.weight"]
    np.testing.assert_array_equal(after[1], first[1])
    assert not np.array_equal(after[0], first[0])

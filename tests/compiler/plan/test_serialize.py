from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wholestep as ws
from tests.support.sessions import mlp
from wholestep.compiler.ir.types import Dim
from wholestep.compiler.plan.check.soundness import check
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.compiler.plan.model.target_formats import FORMATS, format_of
from wholestep.errors import PlanError


def _plan() -> Plan:
    return ws.compile_training_graph(mlp(), optimizer=ws.Adam(), batch_size=13)[0]


PLAN = _plan()
DATA = serialize.dump(PLAN, graph="the graph", key="the key")


def forged(body: object) -> bytes:
    """A file whose checksum is right, whatever its body says."""
    text = json.dumps(body).encode()
    header = {**json.loads(DATA.partition(b"\n")[0]), "checksum": hashlib.sha256(text).hexdigest()}
    return json.dumps(header).encode() + b"\n" + text + b"\n"


def body() -> dict:
    return json.loads(DATA.partition(b"\n")[2])


def test_a_plan_comes_back_equal_and_writes_the_same_bytes() -> None:
    loaded = serialize.load(DATA)
    assert loaded == PLAN
    assert serialize.dump(loaded, graph="the graph", key="the key") == DATA
    header = serialize.read_header(DATA)
    assert (header.graph, header.key, header.version) == ("the graph", "the key", serialize.VERSION)


def test_every_field_of_a_plan_has_a_decoder() -> None:
    for record in serialize.RECORDS:
        for field in dataclasses.fields(record):
            assert str(field.type) in serialize.DECODERS, f"{record.__name__}.{field.name}: {field.type}"
    for form in map(format_of, FORMATS):
        rows = serialize.rows_of(form)
        for field in (f for record in form.records for f in dataclasses.fields(record)):
            assert str(field.type) in rows, f"{form.schedule.__name__}: {field.name}: {field.type}"


def test_values_that_json_does_not_have() -> None:
    assert serialize.encode(Dim.symbol("batch") * 2 + 1) == {"dim": [[[], 1], [["batch"], 2]]}
    constant = dataclasses.replace(PLAN, notes=("\u2603 \u0000 */ \ud800",))
    assert serialize.load(serialize.dump(constant)) == constant
    infinite = dataclasses.replace(PLAN, scalars=(*PLAN.scalars, type(PLAN.scalars[0])("x", float("-inf"))))
    assert serialize.load(serialize.dump(infinite)) == infinite


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a plan file"),
        (b"\xff\xfe nonsense", "not a plan file"),
        (b'{"format": 1}\n{}', "not a plan file"),
        (DATA.replace(b'"version": %d' % serialize.VERSION, b'"version": 99', 1), "version 99; this Wholestep reads"),
        (DATA[:-30], "checksum"),
        (DATA.replace(b"w1", b"v1"), "checksum"),
    ],
)
def test_damaged_bytes_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        serialize.load(data)


def tampered(path: list, value: object) -> dict:
    out = body()
    place = out
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return out


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["capacity", 0], "13"),
        (["capacity", 0], 13.5),
        (["capacity", 0], True),
        (["buffers", 0, "space"], "elsewhere"),
        (["buffers", 0, "type", "dtype"], "float8"),
        (["kernels", 0, "axes", 0], {"dim": "batch"}),
        (["kernels", 0, "surprise"], 1),
        (["inputs", 0], ["x"]),
        (["kernels"], 5),
        (["constants"], [[0, "no base64!"]]),
    ],
)
def test_a_forged_file_of_another_form_is_refused(path: list, value: object) -> None:
    with pytest.raises(PlanError, match="does not have the form"):
        serialize.load(forged(tampered(path, value)))


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["capacity", 0], 10**6, "holds"),  # buffers were sized for 13 rows
        (["arena_bytes"], 64, "of 64 bytes of arena"),
        (["work_bytes"], 0, "bytes of work"),
        (["kernels", 0, "body", "a", "buffer"], 10**6, "is a buffer of the plan; received 1000000"),
        (["kernels", 0, "schedule", "region"], 99, "must be below 2; received 99"),
        (["kernels", 0, "axes", 0], {"dim": [[["bath"], 1]]}, "'bath'"),
        (["inputs", 0, 1], 10**6, "received 1000000"),
        (["outputs", 0, 1], -1, "received -1"),
        (["updated", 0], "nothing", "updated states are states"),
        (["slots"], 0, "is one of 0"),
        (["buffers", 1, "id"], 0, "the buffer at position 1 has this id; received 0"),
    ],
)
def test_a_forged_file_that_would_read_or_write_elsewhere_is_refused(path: list, value: object, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        serialize.load(forged(tampered(path, value)))


def test_overlapping_live_buffers_are_refused() -> None:
    arena = [b for b in PLAN.buffers if b.space is Space.ARENA]
    a, b = next((a, b) for a in arena for b in arena if a.id != b.id and a.first <= b.last and b.first <= a.last)
    moved = dataclasses.replace(b, offset=a.offset)
    buffers = tuple(moved if x.id == b.id else x for x in PLAN.buffers)
    limit = max(PLAN.arena_bytes, moved.offset + moved.bytes)
    with pytest.raises(PlanError, match="overlap in the arena"):
        check(dataclasses.replace(PLAN, buffers=buffers, arena_bytes=limit))
    check(PLAN)


def leaves(value: object, path: tuple = ()):
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from leaves(inner, (*path, key))
    else:
        yield path


LEAVES = list(leaves(body()))


@given(st.sampled_from(LEAVES), st.sampled_from([-1, 0, 10**9, "x", None, [], {}, 1.5, {"dim": [[["z"], 3]]}]))
def test_no_changed_number_does_worse_than_a_plan_error(path: tuple, value: object) -> None:
    try:
        plan = serialize.load(forged(tampered(list(path), value)))
    except PlanError:
        return
    check(plan)  # what is accepted is sound

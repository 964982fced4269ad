"""Dataclasses whose methods are generated late behave like the standard library's."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import field
from threading import Barrier, Thread
from typing import Any, ClassVar

import pytest

from wholestep import records


def declare(dataclass: Any) -> dict[str, Any]:
    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True)
    class Point(Empty):
        kinds: ClassVar[int] = 3
        x: int
        y: tuple[int, ...] = ()
        tags: dict[str, int] = field(default_factory=dict, compare=False)
        note: str = field(default="none", repr=False, hash=False)

        def doubled(self) -> Any:
            return dataclasses.replace(self, x=2 * self.x)

    @dataclass(frozen=True)
    class Checked(Point):
        z: float = 0.5
        y: tuple[int, ...] = (7,)  # in its old place, with another default

        def __post_init__(self) -> None:
            if self.z < 0:
                raise ValueError("z")

    @dataclass(frozen=True, kw_only=True)
    class Named(Empty):
        name: str
        size: int = 1

    @dataclass(frozen=True, eq=False)
    class ById:
        x: int

    @dataclass(frozen=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 1

        def __repr__(self) -> str:
            return "own"

    @dataclass
    class Open:
        x: int
        more: list[int] = field(default_factory=list)

    @dataclass(frozen=True, init=False)
    class Made:
        x: int

        def __init__(self, text: str) -> None:
            object.__setattr__(self, "x", int(text))

    return {c.__name__: c for c in (Empty, Point, Checked, Named, ById, Own, Open, Made)}


CASES = [
    ("Empty", (), {}), ("Point", (1,), {}), ("Point", (1, (2,)), {"tags": {"a": 1}}),
    ("Point", (), {"x": 3, "note": "n"}),
    ("Checked", (1, (2,), {}, "t"), {"z": 3.0}), ("Checked", (float("nan"),), {}), ("Named", (), {"name": "a"}),
    ("ById", (1,), {}), ("Own", (1,), {}), ("Open", (1,), {}), ("Made", ("5",), {}),
]  # fmt: skip
WRONG = [("Point", (), {}), ("Point", (1, 2, 3, 4, 5), {}), ("Named", ("a",), {}), ("Checked", (1,), {"z": -1.0})]


@pytest.mark.parametrize(("name", "args", "named"), CASES)
def test_instances_are_those_of_the_standard_library(name: str, args: Any, named: Any) -> None:
    ours, theirs = declare(records.dataclass)[name], declare(dataclasses.dataclass)[name]
    a, b = ours(*args, **named), theirs(*args, **named)
    assert repr(a) == repr(b)
    assert vars(a) == vars(b) or name == "Checked"  # NaN is unlike itself
    again = ours(*args, **named)
    assert (a == again) == (b == theirs(*args, **named))
    assert (a == copy.copy(a)) == (b == copy.copy(b))
    assert a != b
    assert ours.__match_args__ == theirs.__match_args__
    if theirs.__hash__ is None:
        assert ours.__hash__ is None
    else:
        assert (hash(a) == hash(copy.copy(a))) == (hash(b) == hash(copy.copy(b)))
    assert dataclasses.is_dataclass(ours)
    assert dataclasses.asdict(a).keys() == dataclasses.asdict(b).keys()
    shown = [
        (f.name, f.type, f.default, f.kw_only, f.repr, f.hash, f.compare, f.init) for f in dataclasses.fields(ours)
    ]
    assert shown == [
        (f.name, f.type, f.default, f.kw_only, f.repr, f.hash, f.compare, f.init) for f in dataclasses.fields(theirs)
    ]


@pytest.mark.parametrize(("name", "args", "named"), WRONG)
def test_what_does_not_fit_is_refused_alike(name: str, args: Any, named: Any) -> None:
    errors = []
    for dataclass in (records.dataclass, dataclasses.dataclass):
        with pytest.raises((TypeError, ValueError)) as error:
            declare(dataclass)[name](*args, **named)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_frozen_means_frozen() -> None:
    point = declare(records.dataclass)["Point"](1)
    for change in (lambda: setattr(point, "x", 2), lambda: setattr(point, "new", 2), lambda: delattr(point, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert (point.x, point.kinds, point.doubled().x) == (1, 3, 2)
    assert hash(point) == hash(declare(records.dataclass)["Point"](1))


def test_classes_derive_from_each_other_in_either_direction() -> None:
    late = declare(records.dataclass)["Point"]  # nobody has asked it for anything yet

    @dataclasses.dataclass(frozen=True)
    class Theirs(late):  # type: ignore[misc, valid-type]
        z: int = 3

    @records.dataclass(frozen=True)
    class Ours(Theirs):
        w: int = 4

    assert repr(Ours(1, w=5)).endswith("Ours(x=1, y=(), tags={}, z=3, w=5)")
    assert [f.name for f in dataclasses.fields(Ours)] == ["x", "y", "tags", "note", "z", "w"]
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Thawed", (late,), {}))


def test_threads_may_make_the_first_instances_at_once() -> None:
    for _ in range(50):
        checked = declare(records.dataclass)["Checked"]
        together, made = Barrier(4), list[Any]()

        def first(checked: Any = checked, together: Barrier = together, made: list[Any] = made) -> None:
            together.wait()
            made.append((checked(1, z=2.0), hash(checked(1))))

        threads = [Thread(target=first) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 4
        assert len(set(made)) == 1

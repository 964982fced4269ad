"""Every public name of torch and Keras exists here, raises an error with advice, or is one that nobody would type."""

from __future__ import annotations

import inspect
import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.interop.names.nobody import NOBODY
from wholestep.errors import HabitError, HabitImportError, UsageError
from wholestep.interop import names
from wholestep.interop.keywords import EVERYWHERE, KEYWORDS
from wholestep.interop.names import all_tables

KERAS = json.loads((Path(__file__).parent / "keras_names.json").read_text())
PLACES = {
    "torch": "ws",
    "torch.nn": "ws.nn",
    "torch.nn.functional": "ws.nn.functional",
    "torch.nn.init": "ws.nn.init",
    "torch.nn.utils": "ws.nn.utils",
    "torch.optim": "ws.optim",
    "torch.optim.lr_scheduler": "ws.schedules",
    "keras": "ws",
    "keras.layers": "ws.nn",
}


def public_names(theirs: str) -> list[str]:
    """Without modules of the standard library that torch happens to show: `torch.math`."""
    if theirs in KERAS:
        return list(KERAS[theirs])
    module = import_module(theirs)
    shown = {n: getattr(module, n) for n in dir(module) if not n.startswith("_")}
    return [n for n, value in shown.items() if not inspect.ismodule(value) or value.__name__.startswith("torch")]


def is_for_nobody(theirs: str, name: str) -> bool:
    return name in NOBODY.get(theirs, "").split()


@pytest.mark.parametrize("theirs", PLACES)
def test_every_public_name_is_taken_or_answered(theirs: str) -> None:
    place = names.resolve_path(PLACES[theirs])
    silent = []
    for name in public_names(theirs):
        try:
            assert getattr(place, name) is not None
        except HabitError as error:
            assert name in str(error)  # noqa: PT017
        except AttributeError:
            if not is_for_nobody(theirs, name):
                silent.append(name)
    assert silent == [], f"export them from {PLACES[theirs]}, or say what to write in a table of wholestep/interop"


@pytest.mark.parametrize("theirs", [torch.Tensor, torch.nn.Module], ids=lambda theirs: theirs.__name__)
def test_every_method_is_taken_or_answered(theirs: type) -> None:
    own = ws.Graph().input("x", (2, 3)) if theirs is torch.Tensor else ws.nn.Linear(3, 2)
    place = "torch.Tensor" if theirs is torch.Tensor else "torch.nn.Module"
    silent = []
    for name in (n for n in dir(theirs) if not n.startswith("_")):
        try:
            getattr(own, name)
        except HabitError:
            continue
        except AttributeError:
            silent.append(name)
    assert [n for n in silent if not is_for_nobody(place, n)] == []


def paths() -> list[tuple[str, str, str]]:
    return [(t.theirs, name, path) for t in all_tables() for name, path in t.same.items()]


def test_what_is_the_same_exists() -> None:
    for theirs, name, path in paths():
        assert names.resolve_path(path) is not None, f"{theirs}.{name} -> {path}"


def test_advice_names_what_exists() -> None:
    """Every `ws.…` of a sentence is there, and no sentence sends its reader to another sentence."""
    sentences = [
        (t, text)
        for t in all_tables()
        for text in (*t.say.values(), *t.differs.values(), *(text for _, text in t.groups))
    ]
    rows = [row for table in (EVERYWHERE, *KEYWORDS.values()) for row in table.values()]
    texts = [text for _, text in sentences] + [row.text for row in rows if hasattr(row, "text")]
    wrong = []
    for text in texts:
        for path in re.findall(r"\bws(?:\.\w+)+", text.replace("{plain}", "relu").replace("{name}", "normal")):
            try:
                names.resolve_path(path)
            except AttributeError as error:
                wrong.append(f"{path} of {text!r}: {error}")
    assert wrong == []
    assert len(texts) > 400


def test_a_name_is_in_a_table_once() -> None:
    for table in all_tables():
        assert not set(table.same) & set(table.patterns()), table.theirs
        assert not set(table.differs) & {*table.same, *table.patterns()}, table.theirs
        if table.ours.startswith("ws"):
            ours = names.resolve_path(table.ours).__all__
            assert set(table.differs) <= set(ours), f"{table.theirs}: only what is here can differ"
            rows = sorted({*table.same, *table.say} & set(ours))
            assert rows == [], f"{table.theirs}: the package has these itself; remove their rows"


def test_the_page_is_up_to_date() -> None:
    make = import_module("docs.make_torch_names")
    assert make.TARGET.read_text(encoding="utf-8") == make.render(), "run `python docs/make_api.py`: it writes it too"


# -- how the answers reach people -------------------------------------------------------------------------------------


def test_a_missing_name_says_what_to_write_at_the_users_line() -> None:
    with pytest.raises(HabitError, match=r"no `ws\.no_grad`: nothing to write.*\n  at .*names\.py:\d+: ws\."):
        ws.no_grad()


def test_importing_a_missing_name_says_it_too() -> None:
    with pytest.raises(HabitImportError, match=r"no `ws\.nn\.Dense`: write ws\.nn\.Linear\(inputs, outputs\)"):
        from wholestep.nn import Dense  # noqa: F401
    with pytest.raises(
        ImportError, match=r"there is no `ws\.initial_seed`: write ws\.manual_seed\(0\) for the process"
    ):
        from wholestep import initial_seed  # noqa: F401
    from wholestep.nn import MultiheadAttention

    assert MultiheadAttention is ws.nn.MultiHeadAttention


def test_a_name_that_nobody_has_is_a_plain_error_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'Lineer'. Did you mean 'Linear'\?"):
        _ = ws.nn.Lineer
    assert not hasattr(ws, "nothing_like_this")


def test_two_arguments_for_one_are_refused() -> None:
    with pytest.raises(UsageError, match="Linear: in_features= is another name of inputs=, and both were given"):
        ws.nn.Linear(inputs=3, in_features=3, outputs=2)
    assert ws.nn.Linear(in_features=3, out_features=2, device=None).inputs == 3
    assert np.shape(ws.zeros(2, 3, device="cpu").shape) == (2,)

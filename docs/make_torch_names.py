"""Writes docs/torch-names.md, the replacement of every name of PyTorch and Keras: `python docs/make_torch_names.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import wholestep as ws
from wholestep.interop import names
from wholestep.interop.keras.fit import FIT
from wholestep.interop.keywords import EVERYWHERE, KEYWORDS, Row
from wholestep.interop.name_tables import NameTable, Only, Say
from wholestep.interop.names import all_tables

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.interop.names.nobody import NOBODY

TARGET = Path(__file__).with_name("torch-names.md")
KERAS = json.loads((Path(__file__).parent.parent / "tests/interop/names/keras_names.json").read_text())
CLASSES = {"torch.Tensor": ws.Tensor, "torch.nn.Module": ws.nn.Module, "torch.nn.Parameter": ws.nn.Parameter}
INTRODUCTION = """\
# Every name of PyTorch and Keras, and its equivalent here
A name of theirs is accepted, arguments included, if it means the same; every other name raises an error that says what
to write. `python docs/make_torch_names.py` writes this page from the tables in `wholestep/interop`, in which the
library itself looks names up; a test keeps it up to date. The guides [coming from PyTorch](guides/from-pytorch.md) and
[coming from Keras](guides/from-keras.md) explain how to port a program.
"""


def render() -> str:
    """The text of docs/torch-names.md."""
    return "\n".join([INTRODUCTION, *(_section(t) for t in all_tables()), _arguments()])


def public_names(theirs: str) -> list[str]:
    """The names that a user could type there; for a table without a single place, the names in the table."""
    if theirs in KERAS:
        return list(KERAS[theirs])
    home, _, last = theirs.rpartition(".")
    if theirs in CLASSES:
        shown = {n: None for n in dir(getattr(import_module(home), last)) if not n.startswith("_")}
    elif theirs.startswith("torch") and "," not in theirs and theirs != "torch.utils.data":
        module = import_module(theirs)
        shown = {n: getattr(module, n) for n in dir(module) if not n.startswith("_")}
    else:
        return []
    return [
        n
        for n, value in shown.items()
        if n not in NOBODY.get(theirs, "").split() and (not ismodule(value) or value.__name__.startswith("torch"))
    ]


def _section(table: NameTable) -> str:
    own = dir(CLASSES[table.theirs]) if table.theirs in CLASSES else _exports(table)
    every = dict.fromkeys([*public_names(table.theirs), *table.same, *table.say, *table.differs])
    alike, others = [], {}
    for name in sorted(every, key=lambda name: (name.lower(), name)):
        if (name in own or table.same.get(name, "").endswith((f":{name}", f".{name}"))) and name not in table.differs:
            alike.append(name)
        elif (text := _answer(table, name)) is not None:
            others.setdefault(text, []).append(name)
    lines = [f"## {table.theirs}"]
    if alike:
        lines.append(f"The same names here: {_listed(alike)}.\n")
    lines += ["| there | here |", "|---|---|", *(f"| {_listed(n)} | {_cell(text)} |" for text, n in others.items())]
    return "\n".join(lines) + "\n"


def _exports(table: NameTable) -> Iterable[str]:
    return names.resolve_path(table.ours).__all__ if table.ours.startswith("ws") else ()


def _answer(table: NameTable, name: str) -> str | None:
    if name in table.differs:
        return f"here too, but: {table.differs[name]}"
    if name in table.same:
        home, _, own = table.same[name].rpartition(":")
        return f"`{own}`" if not home else f"the same as `{own.rstrip('_')}`"
    return table.answer(name) or (names.suggestion("ws", name) if table.theirs == "torch.Tensor" else None)


def _listed(found: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in found)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# -- arguments -------------------------------------------------------------------------------------------------------


def _arguments() -> str:
    lines = ["## Arguments", "Of every function and layer that has the word on the right:\n"]
    lines += ["| there | here |", "|---|---|", *(f"| `{word}` | {_row(row)} |" for word, row in EVERYWHERE.items())]
    lines += ["\nOf one function or class:\n", "| of | there | here |", "|---|---|---|"]
    lines += [f"| `{of}` | `{word}` | {_row(row)} |" for of, rows in KEYWORDS.items() for word, row in rows.items()]
    lines += ["\nOf `ws.fit`, from Keras' `fit` and Lightning's `Trainer`:\n", "| there | here |", "|---|---|"]
    for word, row in FIT.items():
        lines.append(f"| `{word}` | {_row(row) if isinstance(row, Only | Say) else f'`{row.ours}`'} |")
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    if isinstance(row, Say):
        return _cell(row.text)
    if isinstance(row, Only):
        if not row.text:
            return "taken, and changes nothing here"
        return f"{' or '.join(f'`{v!r}`' for v in row.values)} alone; {_cell(row.text)}"
    return _listed([row] if isinstance(row, str) else row).replace(", ", " or ")


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")

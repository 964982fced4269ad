"""The documents: every block of Python runs as it stands and trains without findings of the linter; the reference is
complete.  Links: test_references.py.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from docs import make_api
from tests.support.linting import lint_every_fit
from wholestep.compiler import devices
from wholestep.interop.onnx.read import table as onnx
from wholestep.interop.torch.aten import table as aten

ROOT = Path(__file__).parents[2]
RECIPES = [p for p in ROOT.glob("docs/cookbook/*.md") if p.name != "README.md"]
GUIDES = sorted(str(p.relative_to(ROOT)) for p in (*ROOT.glob("docs/guides/*.md"), *RECIPES))
EXECUTED = ["README.md", "docs/tutorial.md", *GUIDES]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[str]:
    """The Python blocks of a document, each behind as many empty lines as stand before it: errors name true lines."""
    text = path.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, m.start(1)) + m[1] for m in BLOCK.finditer(text)]


@pytest.mark.parametrize("document", EXECUTED)
def test_the_code_of_a_document_runs(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One document is one program: later blocks use the names of earlier ones.  It runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "BACKENDS", dict(devices.BACKENDS))  # what a guide registers ends with it
    monkeypatch.setattr(devices, "FAMILIES", dict(devices.FAMILIES))
    monkeypatch.setattr(aten, "OWN", dict(aten.OWN))
    findings = lint_every_fit(monkeypatch)
    found = blocks(ROOT / document)
    assert found, f"{document} has no ```python block"
    program = ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", program)  # dataclasses look their module up
    for block in found:
        exec(compile(block, str(ROOT / document), "exec", dont_inherit=True), vars(program))
    assert findings == []
    for operator, row in [*onnx.ROWS.items()]:
        if row.function.__module__ == "document":
            del onnx.ROWS[operator]


def test_the_table_of_the_cookbook_has_every_recipe_and_each_is_short_and_checks_a_number() -> None:
    table = (ROOT / "docs/cookbook/README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[[^]]+\]\((\S+)\)", table, re.MULTILINE)) == sorted(p.name for p in RECIPES)
    for recipe in RECIPES:
        lines = [line for block in blocks(recipe) for line in block.strip().splitlines() if line.strip()]
        assert 15 <= len(lines) <= 70, f"{recipe.name} has {len(lines)} lines of Python"
        assert "assert " in "".join(lines), f"{recipe.name} compares nothing"


@pytest.mark.parametrize("section", make_api.SECTIONS)
def test_every_public_name_has_a_docstring_of_its_own(section: str) -> None:
    module = make_api.SECTIONS[section]
    assert module.__doc__, f"the module {section} has no docstring"
    for name, value in make_api.public(module):
        if make_api.described(value):
            text = value.__doc__ or ""
            # A dataclass without a docstring gets its signature as one.
            generated = inspect.isclass(value) and text.startswith(f"{value.__name__}(")
            assert text.strip(), f"{section}.{name} has no docstring"
            assert not generated, f"{section}.{name} has no docstring"


def test_the_reference_is_up_to_date_and_has_every_name() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in make_api.FOLDER.glob("*.md")}
    for section, module in make_api.SECTIONS.items():
        text = pages[make_api.page(section)]
        for name, value in make_api.public(module):
            heading = f"## {section}.{name}\n"
            is_there = f"{section}.{name}" in make_api.SECTIONS if isinstance(value, ModuleType) else heading in text
            assert is_there, f"docs/api/ lacks {section}.{name}: run `python docs/make_api.py`"
    assert pages == make_api.render(), "docs/api/ is out of date: run `python docs/make_api.py`"

"""`make size` counts what it says, on a package of a few files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def size() -> Any:
    spec = importlib.util.spec_from_file_location("tools_size", ROOT / "tools" / "size.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tools_size"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "wholestep"
    files = {
        "__init__.py": "",
        "errors.py": '"""Errors."""\n\nclass Error(Exception):\n    """One."""\n',
        "a/__init__.py": "",
        "a/one.py": "from wholestep.b import two\n\ndef turned(x):\n    return x  # a remark\n\n# another\n",
        "a/three.py": "class Error: ...\n\ndef read(): ...\ndef _made_of(): ...\ndef need(): ...\n",
        "b/__init__.py": "",
        "b/two.py": "from typing import TYPE_CHECKING\nfrom wholestep.a import three\nif TYPE_CHECKING:\n"
        "    from wholestep.c import four\n",
        "c/__init__.py": "",
        "c/four.py": "import wholestep.b.two\n\ndef run():\n    from wholestep.a.three import read\n",
        **{f"d/file{i}.py": "" for i in range(20)},
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_each_count_is_what_the_files_say(size: Any, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modules = size.modules_of(package)
    assert size.large_folders(modules.values()) == {"wholestep/d": 20}
    assert size.class_names(modules.values()) == {"Error": ["wholestep.a.three", "wholestep.errors"]}
    named = [name for _, name in size.function_names(modules.values()) if size.is_participle(name)]
    assert named == ["turned", "_made_of"]
    assert size.small_modules(modules) == ["wholestep.c.four"]  # two and three have two importers, one has none
    (package / "c" / "five.py").write_text("from ..a import one\n")
    modules = size.modules_of(package)
    assert size.small_modules(modules) == ["wholestep.a.one", "wholestep.c.four"]
    direct = size.package_imports(modules)
    assert direct["a"] == {"b"}
    assert direct["b"] == {"a"}  # what only a type checker imports does not count,
    assert direct["c"] == {"a", "b"}  # nor what a function imports when it is called
    assert size.mutual_imports(direct) == [("a", "b")]
    assert size.import_cycles(direct) == [["a", "b"]]
    size.main([str(package), "--list"])
    printed = capsys.readouterr().out
    for line in ("a <-> b", "wholestep.a.one.turned", "wholestep/d: 20", "2 of 5 (40.0%)", "1 of 1 (100.0%)"):
        assert line in printed, line


def test_code_lines_are_those_that_run(size: Any, package: Path) -> None:
    modules = size.modules_of(package)
    counts = {name: (m.lines, m.code_lines) for name, m in modules.items() if m.lines}
    assert counts["wholestep.errors"] == (4, 1)
    assert counts["wholestep.a.one"] == (6, 3)


def test_a_package_of_ours_is_measured(size: Any, capsys: pytest.CaptureFixture[str]) -> None:
    size.main([str(ROOT / "wholestep" / "steps")])
    assert "packages in import cycles" in capsys.readouterr().out


def test_every_module_is_part_of_a_capability_and_every_row_names_one(size: Any) -> None:
    modules = size.modules_of(ROOT / "wholestep").values()
    assert [m.name for m in modules if m.capability == "(none)"] == [], "add it to CAPABILITIES of tools/size.py"
    names = [m.path.relative_to(m.root).with_suffix("").as_posix() for m in modules]
    entries = [entry for row in size.CAPABILITIES.values() for entry in row]
    assert [e for e in entries if not any(n == e or n.startswith(f"{e}/") for n in names)] == [], (
        "there is no such file"
    )

"""What prose refers to exists: links, file names and names of the package, in documents, docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import wholestep as ws

ROOT = Path(__file__).parents[2]
FOLDERS = ("wholestep", "docs", "tests", "benchmarks", "examples", "tools")
PROSE = (".md", ".py", ".pyi", ".h", ".c", ".cu", ".cpp")

# A target of a link is a path: `[i](x, y)` in a comment is code.
LINK = re.compile(r"\[[^\]]*\]\((?!\w+://)([\w./-]*[./][\w./-]+)(?:#[\w-]*)?\)")
FILE = re.compile(r"(?<!`)(`{1,2})([\w.-]+(?:/[\w.-]+)*(?:\.(?:py|pyi|md|h|c|cu|cpp|toml|yml)|/))\1(?!`)")
# In a command, `python docs/make_api.py`, only paths from the root are ours: others are the reader's own files.
IN_COMMAND = re.compile(rf"`[^`\n]*?(?<![\w/])((?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:py|md|h|c|toml))(?![\w*])[^`\n]*`")
# `plan/lower/draft.py: make_draft`: a function, or anything else that the file names.
IN_FILE = re.compile(r"(?<!`)`([\w.-]+(?:/[\w.-]+)*\.(?:py|h|c)): ([\w.]+)`(?!`)")
OTHERS_FILES = {
    **dict.fromkeys(("entry.c", "tables.h", "train.c"), "generated for each plan"),
    **dict.fromkeys(("stddef.h", "stdint.h"), "C's"),
    "nccl.h": "NVIDIA's",
    "NNN-title.md": "the pattern of names of decisions",
}
NAME = re.compile(r"(?<![\w.])ws\.(?!h\b)([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?![\w{])")


def files() -> list[Path]:
    inner = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return sorted(path for path in [*ROOT.iterdir(), *inner] if path.is_file())


@cache
def endings() -> frozenset[str]:
    """Every file and folder by its path and by every end of it: `ir/ops.py` and `ops.py`, `compiler/ir/` and `ir/`."""
    paths = {path.relative_to(ROOT) for path in files()}
    folders = {folder for path in paths for folder in path.parents}
    named = [*(path.parts for path in paths), *((*folder.parts, "") for folder in folders)]
    return frozenset("/".join(parts[i:]) for parts in named for i in range(len(parts)))


def documented() -> list[str]:
    """Files with prose; changes name what was there when they were made."""
    return [str(p.relative_to(ROOT)) for p in files() if p.suffix in PROSE and p.name != "CHANGELOG.md"]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Pieces of text and the lines where they begin: a document as a whole, docstrings and comments of sources."""
    text = text_of(path)
    if path.suffix == ".md":
        yield 1, text
    elif path.suffix in (".py", ".pyi"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                doc := ast.get_docstring(node, False)
            ):
                yield node.body[0].lineno, doc
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    else:
        for match in re.finditer(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL):
            yield text.count("\n", 0, match.start()) + 1, match[0]


def references(path: Path, pattern: re.Pattern[str], group: int = 1) -> Iterator[tuple[str, str]]:
    """(file:line, what is referred to) of every match in prose."""
    if not pattern.search(text_of(path)):
        return
    for line, text in prose(path):
        for match in pattern.finditer(text):
            at = line + text.count("\n", 0, match.start())
            yield f"{path.relative_to(ROOT)}:{at}", match[group]


@cache
def is_name(chain: str) -> bool:
    """Does `ws.<chain>` exist?  What an instance has is not known; fields of a dataclass are."""
    value: object = ws
    for part in chain.split("."):
        if part == "X":  # "`torch.X`, looked for as `ws.X`"
            return True
        if not isinstance(value, ModuleType | type):
            return True
        if isinstance(value, type) and part in getattr(value, "__annotations__", {}):
            return True
        try:
            value = getattr(value, part)
        except (AttributeError, ImportError):
            return False
    return True


def test_links_lead_to_files() -> None:
    lost = [
        f"{where} links to {target}"
        for name in documented()
        for where, target in references(ROOT / name, LINK)
        if not ((ROOT / name).parent / target).exists()
    ]
    assert not lost, "\n".join(lost)


def test_files_that_are_named_exist() -> None:
    lost = []
    for name in documented():
        named = [*references(ROOT / name, FILE, 2), *references(ROOT / name, IN_COMMAND)]
        lost += [f"{where} names `{file}`" for where, file in named if file not in endings() | OTHERS_FILES.keys()]
    assert not lost, "\n".join(lost)


def test_functions_that_are_named_with_their_file_are_in_it() -> None:
    sources = [path for path in files() if path.suffix in (".py", ".h", ".c")]
    lost = []
    for name in documented():
        named = zip(references(ROOT / name, IN_FILE, 1), references(ROOT / name, IN_FILE, 2), strict=True)
        for (where, file), (_, function) in named:
            homes = [path for path in sources if f"/{path.relative_to(ROOT).as_posix()}".endswith(f"/{file}")]
            word = re.compile(rf"\b{function.rpartition('.')[2]}\b")
            if not any(word.search(text_of(path)) for path in homes):
                lost.append(f"{where} names `{file}: {function}`")
    assert not lost, "\n".join(lost)


def test_names_of_the_package_exist() -> None:
    """In documents, and in the whole text of sources: errors and advice tell people to write them."""
    lost = [
        f"{name}:{text_of(ROOT / name).count(chr(10), 0, match.start()) + 1} names ws.{match[1]}"
        for name in documented()
        if not name.startswith("tests/")  # which try names that are not there
        for match in NAME.finditer(text_of(ROOT / name))
        if not is_name(match[1])
    ]
    assert not lost, "\n".join(lost)


def test_every_environment_variable_is_documented() -> None:
    read = set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|CC)"', text_of(ROOT / "wholestep/options.py")))
    assert {"WHOLESTEP_CACHE_DIR", "WHOLESTEP_THREADS", "CC"} <= read
    listed = set(re.findall(r"`([A-Z0-9_]+)`", text_of(ROOT / "docs/environment.md")))
    assert read <= listed, f"docs/environment.md lacks {sorted(read - listed)}"


def test_every_kind_of_device_is_documented() -> None:
    from wholestep.compiler.devices import BACKENDS

    lacking = [name for name in BACKENDS if f'"{name}' not in (ws.build_session.__doc__ or "")]
    assert not lacking, f"build_session's docstring does not name {lacking}"


def test_every_decision_is_listed_under_its_number() -> None:
    listed = text_of(ROOT / "docs/decisions/README.md")
    for page in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        number = page.name[:3]
        assert f"- [{number}]({page.name}): " in listed, f"docs/decisions/README.md does not list {page.name}"
        assert text_of(page).startswith(f"# {number}: "), f"{page.name} has another number in its title"


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (LINK, "([003](../decisions/003-plans.md))", ["../decisions/003-plans.md"]),
        (LINK, "of [x](https://example.org/a.md) and a[i](b, c) and rows[0](x.y(z))", []),
        (
            FILE,
            "`compat.py` and ``native/x.h`` and `ir/`, not `f.readline` or `python a.py`",
            ["compat.py", "native/x.h", "ir/"],
        ),
        (IN_FILE, "`plan/draft.py: make_draft`, not `a.py` or `x: y`", ["plan/draft.py"]),
        (IN_COMMAND, "run `python docs/make.py --all`, not `python mine/a.py`", ["docs/make.py"]),
        (NAME, "`ws.RMSProp`, ws.data.Encoder(x), f'ws.a{name}', of ws.h", ["RMSProp", "data.Encoder"]),
    ],
)
def test_what_is_looked_for(pattern: re.Pattern[str], text: str, expected: list[str]) -> None:
    assert [match[2 if pattern is FILE else 1] for match in pattern.finditer(text)] == expected


def test_names_that_do_not_exist_are_found() -> None:
    assert is_name("data.Encoder.fit")
    assert is_name("Experiment.epochs")
    assert not is_name("RMSProp")
    assert not is_name("data.Encodr")

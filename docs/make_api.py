"""Writes docs/api/, one page per package, from the docstrings of every public name: `python docs/make_api.py`."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import wholestep as ws
import wholestep.sklearn

FOLDER = Path(__file__).with_name("api")
INDEX = "README.md"
SECTIONS = {
    "ws": ws,
    "ws.nn": ws.nn,
    "ws.nn.functional": ws.nn.functional,
    "ws.nn.init": ws.nn.init,
    "ws.models": ws.models,
    "ws.losses": ws.losses,
    "ws.optim": ws.optim,
    "ws.schedules": ws.schedules,
    "ws.privacy": ws.privacy,
    "ws.metrics": ws.metrics,
    "ws.data": ws.data,
    "ws.callbacks": ws.callbacks,
    "ws.datasets": ws.datasets,
    "ws.init": ws.init,
    "ws.errors": ws.errors,
    "wholestep.sklearn": wholestep.sklearn,
}
Home = dict[int, str]  # object -> the page that describes it; an object with two names is described once
INTRODUCTION = """\
# API reference
Every public name, from its docstring, one page per package. `python docs/make_api.py` generates these pages; a test
keeps them complete and up to date. The [tutorial](../tutorial.md) shows how the names work together;
[stability](../stability.md) says which of them may still change.
"""


def render() -> dict[str, str]:
    """The text of each file of docs/api/."""
    home: Home = {}
    sections = {title: [(n, v) for n, v in public(m) if not isinstance(v, ModuleType)] for title, m in SECTIONS.items()}
    # A top-level name that is also in a submodule is described on the page of the submodule.
    for title, members in sorted(sections.items(), key=lambda item: item[0] == "ws"):
        for name, value in members:
            if described(value):
                home.setdefault(id(value), f"{title}.{name}")
    links = {
        heading: f"{page(title)}#{anchor}"
        for title, members in sections.items()
        for heading, anchor in _anchors([title, *(f"{title}.{name}" for name, _ in members)]).items()
    }
    pages = {INDEX: "\n".join([INTRODUCTION, *(_summary(title, members) for title, members in sections.items())])}
    for title, members in sections.items():
        parts = [f"# {title}\n{inspect.getdoc(SECTIONS[title])}\n", f"[All packages]({INDEX})\n"]
        parts.append(", ".join(f"[`{name}`]({links[f'{title}.{name}']})" for name, _ in members) + "\n")
        parts += [_entry(f"{title}.{name}", value, home, links) for name, value in members]
        pages[page(title)] = "\n".join(parts)
    return pages


def page(title: str) -> str:
    """The file of a package's page: `top_level.md` of `ws` itself, then `nn.md`, `sklearn.md`."""
    return "top_level.md" if title == "ws" else f"{title.removeprefix('ws.').removeprefix('wholestep.')}.md"


def write() -> None:
    """Writes the pages, and removes those of packages that no longer exist."""
    pages = render()
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """The names that a module exports; without `__all__`, what it defines itself."""
    names = getattr(module, "__all__", None)
    if names is None:
        own = vars(module).items()
        names = [n for n, v in own if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__]
    return [(name, getattr(module, name)) for name in names]


def described(value: object) -> bool:
    """Does the object have its own docstring?  Numbers, dtypes and tables do not."""
    return inspect.isclass(value) or inspect.isroutine(value)


def _anchors(headings: list[str]) -> dict[str, str]:
    """The anchors of headings, as usual renderers name them: `wsstep` for ws.Step, `wsstep-1` for ws.step after it."""
    seen: Counter[str] = Counter()
    found = {}
    for heading in headings:
        plain = anchor(heading)
        found[heading] = f"{plain}-{seen[plain]}" if seen[plain] else plain
        seen[plain] += 1
    return found


def anchor(heading: str) -> str:
    """A unique anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _summary(title: str, members: list[tuple[str, Any]]) -> str:
    """A package in the index: the first sentence of its docstring, and its names."""
    first = " ".join((inspect.getdoc(SECTIONS[title]) or "").split("\n\n")[0].split())
    return f"## [{title}]({page(title)})\n{first}\n\n{', '.join(f'`{name}`' for name, _ in members)}\n"


# -- one name --------------------------------------------------------------------------------------------------------


def _entry(path: str, value: Any, home: Home, links: Mapping[str, str]) -> str:
    if not described(value):
        return f"## {path}\n{_constant(value)}\n"
    first = home[id(value)]
    if first != path:
        return f"## {path}\nThe same as [{first}]({links[first]}).\n"
    call = signature(path.rpartition(".")[2], value)
    lines = [f"## {path}", f"```text\n{call}\n```", prose(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        lines += [f"- {line}" for line in _members(value, home)]
    return "\n".join(lines) + "\n"


def _constant(value: object) -> str:
    if isinstance(value, Mapping):
        return f"A table by name: {', '.join(f'`{key}`' for key in value)}."
    return f"`{value}`, {type(value).__name__}."


def _members(cls: type, home: Home) -> Iterator[str]:
    """Public methods and properties with the first sentence of each docstring; a documented base has its own list."""
    bases = [c for c in cls.__mro__ if c is cls or (c.__module__.startswith("wholestep") and id(c) not in home)]
    shown: set[str] = set()
    for name, member in [item for base in bases for item in vars(base).items()]:
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        text = inspect.getdoc(function)
        known = inspect.isfunction(function) or isinstance(function, property)
        if name in shown or name.startswith("_") or not text or not known:
            continue
        shown.add(name)
        call = name if isinstance(function, property) else signature(name, function, bound=True)
        yield f"`.{call}`: {' '.join(text.split(chr(10) * 2)[0].split())}"


def signature(name: str, value: Any, bound: bool = False) -> str:
    """The signature as a call, with annotations as in the source."""
    try:
        found = _fields(value) or list(inspect.signature(value).parameters.values())
    except ValueError:
        return name
    shown, star = [], False
    for p in found[1:] if bound and found and found[0].name in ("self", "cls") else found:
        if p.kind is p.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        star = star or p.kind is p.VAR_POSITIONAL
        shown.append(_parameter(p))
    line = f"{name}({', '.join(shown)})"
    return line if bound or len(line) <= 110 else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


def _fields(value: Any) -> list[inspect.Parameter]:
    """The arguments of a dataclass with a generated constructor: ours has a signature only after its first call."""
    if not (inspect.isclass(value) and is_dataclass(value)):
        return []
    if not value.__init__.__code__.co_filename.endswith(("<string>", "records.py")):  # type: ignore[misc]
        return []
    return [_argument(f) for f in sorted(fields(value), key=lambda f: bool(f.kw_only)) if f.init]


def _argument(f: Field[Any]) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if f.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = f.default if f.default_factory is MISSING else _Factory()
    return inspect.Parameter(
        f.name, kind, default=inspect.Parameter.empty if default is MISSING else default, annotation=f.type
    )


def _parameter(p: inspect.Parameter) -> str:
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    annotation = p.annotation if isinstance(p.annotation, str) else getattr(p.annotation, "__name__", str(p.annotation))
    kind = "" if p.annotation is p.empty else f": {annotation}"
    if p.default is p.empty:
        return f"{stars}{p.name}{kind}"
    default = getattr(p.default, "__name__", None) if callable(p.default) else None
    return f"{stars}{p.name}{kind}{' = ' if kind else '='}{default or repr(p.default)}"


def prose(text: str) -> str:
    """A docstring as Markdown: arguments become a list, `Example::` a block of Python."""
    python = r"Example::\n\n((?:    .*\n?|\n)+)"
    text = re.sub(python, lambda m: f"```python\n{textwrap.dedent(m[1]).strip()}\n```\n", text)
    return re.sub(r"(Args|Returns):\n((?:    .*\n?)+)", lambda m: f"{m[1]}:\n{_list(m[2])}\n", text).strip()


def _list(block: str) -> str:
    """`name: text` lines, with their continuation lines, as a list."""
    joined = re.sub(r"\n +(?= {4})\s+", " ", textwrap.dedent(block).strip())
    joined = re.sub(r"\n\s+", " ", joined)
    return "\n".join("- " + re.sub(r"^([\w, ]+):", r"`\1`:", line) for line in joined.split("\n"))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))  # for `python -m docs.make_api`
    import make_ops  # writes docs/ops.md
    import make_torch_names  # writes docs/torch-names.md, which lists public names

    write()
    make_torch_names.TARGET.write_text(make_torch_names.render(), encoding="utf-8")
    make_ops.PAGE.write_text(make_ops.render(), encoding="utf-8")

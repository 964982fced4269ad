"""One HTML file from the page's sources: modules in one script, embedded files as compressed text, no requests."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from wholestep.errors import CheckpointError
from wholestep.nn.state.weights import temporary_for

PAGE = Path(__file__).parent
ENTRIES = {"page": "main", "report": "report"}  # the module that starts each page
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.mjs";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)


def script(sources: Mapping[str, str], entry: str) -> str:
    """ES modules (name -> source) joined to one classic script, which the page runs and also starts as a worker."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = sources[name]
        for _, other in _IMPORT.findall(text):
            add(other)
        body = _IMPORT.sub(lambda m: f"const {{{m[1].replace(' as ', ': ')}}} = {_variable(m[2])};\n", text)
        exported = ", ".join(match[1] for match in _EXPORT.findall(body))
        body = _EXPORT.sub(r"\1", body)
        done[name] = f"const {_variable(name)} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"

    add(entry)
    return '"use strict";\n' + "".join(done.values())


def _variable(name: str) -> str:
    return f"module_{name}"


def page_sources() -> dict[str, str]:
    """The JavaScript modules of this folder, name -> source."""
    files = [*(PAGE / "core").glob("*.mjs"), *(PAGE / "interface").glob("*.mjs")]
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def html(
    page: str,
    description: Mapping[str, Any],
    *,
    title: str,
    files: Mapping[str, bytes] | None = None,
    step: str | None = None,
    asks: bool = False,
) -> str:
    """The page "page" or "report": its description, and files by the id of their element.

    A content security policy permits this one script and forbids every connection.

    Args:
        step: the module of a compiled program's interface, which the page's script runs in a worker.
        asks: may the page ask the server that it came from?
    """
    from wholestep import __version__

    sources = page_sources() if step is None else {**page_sources(), "step": step}
    code = script(sources, ENTRIES[page])
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    parts = {
        "policy": _policy(code, style, runs=step is not None, asks=asks),
        "title": escape(title.encode(errors="replace").decode()),
        "version": escape(__version__),
        "style": style,
        "code": code,
        "spec": json.dumps(description).replace("<", "\\u003c"),
        **{name: _gzip_text(content) for name, content in (files or {}).items()},
    }
    template = (PAGE / f"{page}.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], template)


def write_page(path: Path, text: str) -> Path:
    """Write a page; CheckpointError if that is impossible, and then what was there before is untouched."""
    try:
        with temporary_for(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"the page could not be written to {path}: {error}. What was there before is untouched. Free some space, "
            "or name a folder that can be written."
        ) from error
    return path


def _policy(code: str, style: str, *, runs: bool, asks: bool) -> str:
    rules = ("default-src 'none'", f"style-src {_digest(style)}", "img-src data: blob:", "form-action 'none'")
    own = (
        (f"script-src {_digest(code)} 'wasm-unsafe-eval' blob:", "worker-src blob:")
        if runs
        else (f"script-src {_digest(code)}",)
    )
    return "; ".join((*rules, *own, *(["connect-src 'self'"] if asks else []), "base-uri 'none'"))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _gzip_text(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()

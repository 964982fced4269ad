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

PAGE = Path(__file__).parent
ENTRY = "main"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.mjs";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)


def script(sources: Mapping[str, str], entry: str = ENTRY) -> str:
    """ES modules by name as one classic script, which a page and a worker made of its text run alike."""
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
    """The page's own modules by name."""
    files = [*(PAGE / "core").glob("*.mjs"), *(PAGE / "interface").glob("*.mjs")]
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def html(description: Mapping[str, Any], step: str, files: Mapping[str, bytes], *, title: str, version: str) -> str:
    """The page: its description, the module of the program's interface (`step`), and files by the id of their element.

    A content security policy permits this one script and forbids every connection.
    """
    code = script({**page_sources(), "step": step})
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    parts = {
        "policy": _policy(code, style),
        "title": escape(title),
        "version": escape(version),
        "style": style,
        "code": code,
        "spec": json.dumps(description).replace("<", "\\u003c"),
        **{name: _gzip_text(content) for name, content in files.items()},
    }
    template = (PAGE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], template)


def _policy(code: str, style: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_digest(code)} 'wasm-unsafe-eval' blob:",
            f"style-src {_digest(style)}",
            "worker-src blob:",
            "img-src data: blob:",
            "form-action 'none'",
            "base-uri 'none'",
        )
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _gzip_text(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()

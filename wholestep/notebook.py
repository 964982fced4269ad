"""HTML of results for notebooks: escaped text in folds and tables, without scripts or styles of their own.

`_repr_html_` is the method that Jupyter, Colab and VS Code call on the last value of a cell.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

MOST_ROWS = 100  # the most rows of a table; `str()` of the object has all rows
MOST_TEXT = 40_000  # the most characters of a text


def text_html(title: str, text: str, *, is_open: bool = True) -> str:
    """A text in a fixed-width font below a title that folds it."""
    shown = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n… {len(text) - MOST_TEXT:,} more characters"
    pre = f'<pre style="overflow-x:auto">{escape(shown)}</pre>'
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>{pre}</details>"


def table_html(names: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Rows as a table; numbers are on the right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>… {len(rows) - MOST_ROWS:,} more rows; print() shows all</p>" if len(rows) > MOST_ROWS else ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = (f"{value:,}" if isinstance(value, int) else f"{value:.5g}") if is_number else str(value)
    return f'<td style="text-align:{"right" if is_number else "left"}">{escape(text)}</td>'


def notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` if this process is a notebook's kernel; None in scripts, terminals and IPython's shell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if getattr(shell, "kernel", None) is None:
        return None
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    return display

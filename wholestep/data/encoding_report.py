"""The report of a fitted encoder: one line per column, what it holds, how it is encoded, and what looks wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wholestep.data.column import Column
from wholestep.data.frame_text import aligned

if TYPE_CHECKING:
    from wholestep.data.column_encodings import Part
    from wholestep.data.encoding import Encoding

IGNORED = "not used"


@dataclass(frozen=True)
class ColumnSummary:
    """What the training rows of a column looked like: for the report only, nothing is computed from it."""

    name: str
    holds: str  # "int64", "text", "date", "category", …
    missing: int  # rows without a value
    remark: str = ""

    @staticmethod
    def of(name: str, column: Column, remark: str = "") -> ColumnSummary:
        return ColumnSummary(name, column.type_name, int(column.missing.sum()), remark)

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> ColumnSummary:
        if not all(isinstance(stored[key], str) for key in ("name", "holds", "remark")):
            raise ValueError(f"a summary of the column {stored['name']!r} that is not text")
        return ColumnSummary(stored["name"], stored["holds"], int(stored["missing"]), stored["remark"])


def report(encoding: Encoding) -> str:
    """The columns in the order of the table, then the target."""
    parts: dict[str, Part] = {part.name: part for part in encoding.parts}
    # Files written before summaries were stored have none.
    summaries = encoding.summary or tuple(ColumnSummary(name, "", 0) for name in parts)
    rows = [
        (s.name, s.holds, str(s.missing), parts[s.name].described if s.name in parts else IGNORED, s.remark)
        for s in summaries
    ]
    if encoding.target is not None:
        rows.append(("(target)", "", "", encoding.target.described, ""))
    return aligned([("column", "holds", "missing", "encoded as", "remark"), *rows])

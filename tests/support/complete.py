"""Completeness of tables: a failure names the rows that are missing, and the table that lacks them."""

from __future__ import annotations

from collections.abc import Collection


def assert_has_rows(found: Collection[str], needed: Collection[str], table: str) -> None:
    """`table` says where it is: "VALUES of wholestep/.../values.py"."""
    missing = sorted(set(needed) - set(found))
    assert not missing, f"{table} has no row for {', '.join(missing)}: add it (CONTRIBUTING.md lists every table)"


def assert_equal_rows(found: Collection[str], needed: Collection[str], table: str) -> None:
    """Every row that is needed, and no other."""
    assert_has_rows(found, needed, table)
    unneeded = sorted(set(found) - set(needed))
    assert not unneeded, f"{table} has rows that no op needs: {', '.join(unneeded)}; remove them"

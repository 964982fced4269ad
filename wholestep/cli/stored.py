"""`wholestep runs`, `checkpoint` and `cache`: what is on the disk, listed, compared, checked and removed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wholestep.cli.shared import AsJson, report_errors
from wholestep.errors import UsageError

runs = typer.Typer(help="List, describe, tag and remove runs.", no_args_is_help=True)
checkpoint = typer.Typer(help="List, inspect, compare, check, convert, average and prune.", no_args_is_help=True)
cache = typer.Typer(help="The cache of plans and compiled code.", no_args_is_help=True)

Run = Annotated[Path, typer.Argument(help="The folder of a run.")]
OneCheckpoint = Annotated[Path, typer.Argument(help="A checkpoint, or the folder of a run: its newest one.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")]


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Rows as a table of text, or as a JSON list; cells of columns that a row lacks are empty."""
    if as_json:
        print(json.dumps(list(rows), indent=1))
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if names else []
    for line in cells if names else []:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    """A value on one line; text of files cannot move the cursor."""
    if isinstance(value, float):
        return f"{value:.5g}"
    text = f"{value:,}" if type(value) is int else ", ".join(value) if isinstance(value, list) else str(value)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# -- runs ------------------------------------------------------------------------------------------------------------


@runs.command("ls")
@report_errors
def list_runs(
    folder: Annotated[Path, typer.Argument(help="The folder that runs are in.")] = Path("runs"),
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    sort: Annotated[str | None, typer.Option(help="By a number: the best one, the best run first.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs below a folder with their last and best numbers."""
    from wholestep.schedules.monitor_modes import mode_of_name
    from wholestep.train.checkpoint.folder import runs_below
    from wholestep.train.checkpoint.manage import describe_run

    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; name the one that runs are in: wholestep runs ls runs/")
    rows = [{"run": name, **describe_run(path)} for name, path in runs_below(folder).items()]
    rows = [row for row in rows if tag is None or tag in row["tags"]]
    if sort is not None:
        measured = [row for row in rows if sort in row.get("best", row.get("last", {}))]
        if not measured:
            raise UsageError(f"no run in {folder} has a best {sort!r}.")
        measured.sort(key=lambda row: row["best"][sort], reverse=mode_of_name(sort) == "max")
        rows = [*measured, *(row for row in rows if row not in measured)]
    print_rows(rows if as_json else [_short_row(row, sort) for row in rows], as_json)


def _short_row(row: Mapping[str, Any], sort: str | None) -> dict[str, Any]:
    """The metric that the list shows: the metric by which runs are sorted, else the validation or training loss."""
    if "problem" in row:
        return {"run": row["run"], "tags": row["tags"], "problem": row["problem"]}
    shown = [name for name in (sort, "loss", "val_loss") if name in row["last"]]
    numbers = {name: row["last"][name] for name in shown}
    best = {f"best {name}": row["best"][name] for name in shown[:1] if sort and name in row["best"]}
    counts = {name: row[name] for name in ("epochs", "updates", "checkpoints", "bytes")}
    return {"run": row["run"], **counts, **numbers, **best, "tags": row["tags"], "stopped": row["stopped_by"]}


@runs.command("show")
@report_errors
def show_run(run: Run, as_json: AsJson = False) -> None:
    """Describe a run: numbers, settings, environment."""
    from wholestep.train import load_checkpoint
    from wholestep.train.checkpoint.manage import describe_run, need_run

    need_run(run)
    described, stored = describe_run(run), load_checkpoint(run)
    whole = {**described, "config": dict(stored.config), "environment": dict(stored.versions)}
    if as_json:
        print(json.dumps(whole, indent=1))
        return
    print(stored.history)
    rest = {name: value for name, value in whole.items() if name not in ("last", "best")}
    print_rows([{"name": name, "value": value} for name, value in _flat(rest)], as_json=False)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested values by dotted names."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        inner = isinstance(value, Mapping) and value
        plain = value if isinstance(value, str | int | float) else json.dumps(value)
        pairs += _flat(value, f"{prefix}{name}.") if inner else [(f"{prefix}{name}", plain)]
    return pairs


@runs.command("tag")
@report_errors
def tag_run(
    run: Run,
    tags: Annotated[list[str] | None, typer.Argument(help="Tags to add.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A tag to remove.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add and remove tags of a run, and print the resulting tags."""
    from wholestep.train.checkpoint.manage import set_tags

    now = set_tags(run, tags or [], remove or [])
    print(json.dumps(now) if as_json else ", ".join(now) or "no tags")


@runs.command("rm")
@report_errors
def remove_runs(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")], yes: Yes = False, as_json: AsJson = False
) -> None:
    """Remove runs: what they have written, and their folders if nothing else is in them."""
    from wholestep.train.checkpoint.manage import folder_bytes, need_run, remove_run

    for run in folders:
        need_run(run)
    sizes = {str(run): folder_bytes(run) for run in folders}
    if not yes:
        typer.confirm(f"Remove {len(folders)} runs with {sum(sizes.values()):,} bytes?", abort=True)
    left = {str(run): remove_run(run) for run in folders}
    print_rows([{"run": run, "bytes": sizes[run], "left": left[run]} for run in sizes], as_json)


# -- checkpoints -----------------------------------------------------------------------------------------------------


@checkpoint.command("ls")
@report_errors
def list_checkpoints(run: Run, as_json: AsJson = False) -> None:
    """List the checkpoints of a run with the numbers of their epochs."""
    from wholestep.errors import CheckpointError
    from wholestep.train.checkpoint.folder import checkpoints_in
    from wholestep.train.checkpoint.format import read_manifest
    from wholestep.train.checkpoint.manage import folder_bytes, need_run

    need_run(run)
    rows: list[dict[str, Any]] = []
    for stored in checkpoints_in(run):
        row = {"checkpoint": stored.path.name, "updates": stored.step, "bytes": folder_bytes(stored.path)}
        try:
            body = read_manifest(stored.path)
            logs = {n: v for n, v in body["logs"].items() if not isinstance(v, list) and "/" not in n}
            rows.append({**row, "epoch": body["position"]["epoch"], **logs})
        except CheckpointError as error:
            rows.append({**row, "problem": str(error)})
    print_rows(rows, as_json)


@checkpoint.command("inspect")
@report_errors
def inspect(path: OneCheckpoint, as_json: AsJson = False) -> None:
    """Check the files of a checkpoint; show its arrays, position, numbers and environment."""
    from wholestep.train import load_checkpoint

    stored = load_checkpoint(path)
    arrays: list[dict[str, Any]] = [
        {"name": n, "dtype": str(a.dtype), "shape": list(a.shape), "bytes": a.nbytes, "weights": n in stored.own}
        for n, a in stored.arrays.items()
    ]
    if as_json:
        facts = {"path": str(stored.path), "step": stored.step, "position": vars(stored.position)}
        logs = {"logs": dict(stored.logs), "versions": dict(stored.versions), "identity": dict(stored.identity)}
        print(json.dumps({**facts, **logs, "arrays": arrays}, indent=1))
        return
    print(stored)
    print_rows([{**row, "shape": "x".join(map(str, row["shape"])) or "scalar"} for row in arrays], as_json=False)
    print_rows([{"name": n, "value": v} for n, v in _flat({"environment": stored.versions})], as_json=False)


@checkpoint.command("diff")
@report_errors
def diff(one: OneCheckpoint, other: OneCheckpoint, as_json: AsJson = False) -> None:
    """Name the arrays and settings in which two checkpoints differ; exit with code 1 if there are any."""
    from wholestep.train import load_checkpoint
    from wholestep.train.checkpoint.manage import tensor_differences

    first, second = load_checkpoint(one), load_checkpoint(other)
    different = tensor_differences(first.arrays, second.arrays)
    settings = dict(_flat(first.config)), dict(_flat(second.config))
    names = [
        name for name in dict.fromkeys((*settings[0], *settings[1])) if settings[0].get(name) != settings[1].get(name)
    ]
    rows = [{"name": name, "difference": value} for name, value in different.items()]
    rows += [{"name": f"setting {n}", "difference": f"{settings[0].get(n)} and {settings[1].get(n)}"} for n in names]
    if rows or as_json:
        print_rows(rows, as_json)
    else:
        print("the checkpoints have equal arrays and settings")
    if rows:
        raise typer.Exit(1)


@checkpoint.command("verify")
@report_errors
def verify(path: OneCheckpoint, as_json: AsJson = False) -> None:
    """Compare every file of a checkpoint, or of all checkpoints of a run, with its checksum; exit code 1 on damage."""
    from wholestep.train.checkpoint.manage import verify as problems_of

    problems = problems_of(path)
    rows = [{"checkpoint": place, "state": problem or "whole"} for place, problem in problems.items()]
    print_rows(rows, as_json)
    if any(problems.values()):
        raise typer.Exit(1)


@checkpoint.command("convert")
@report_errors
def convert(
    path: OneCheckpoint,
    output: Annotated[Path, typer.Argument(help="weights.safetensors or weights.npz.")],
    everything: Annotated[bool, typer.Option("--all", help="With the optimizer's state and counters.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a checkpoint as one file that other libraries read."""
    from wholestep.train.checkpoint.manage import convert as write

    count = write(_checkpoint_path(path), output, everything=everything)
    _print_file(output, count, as_json)


@checkpoint.command("average")
@report_errors
def average(
    paths: Annotated[list[Path], typer.Argument(help="Checkpoints of one model; or a run: its checkpoints.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of weights.")] = Path("average.safetensors"),
    last: Annotated[int | None, typer.Option(min=2, help="Of a run: only so many of its newest.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the mean of the weights of several checkpoints."""
    from wholestep.train.checkpoint.folder import checkpoints_in, is_checkpoint
    from wholestep.train.checkpoint.manage import average as write

    if len(paths) == 1 and not is_checkpoint(paths[0]):
        stored = [each.path for each in checkpoints_in(paths[0])]
        paths = stored if last is None else stored[-last:]
    elif last is not None:
        raise UsageError("--last is for one run; name the checkpoints, or a run.")
    count = write([_checkpoint_path(path) for path in paths], output)
    _print_file(output, count, as_json)


def _print_file(output: Path, arrays: int, as_json: bool) -> None:
    size = output.stat().st_size
    facts = {"path": str(output), "arrays": arrays, "bytes": size}
    print(json.dumps(facts) if as_json else f"{output}: {arrays} arrays, {size:,} bytes")


def _checkpoint_path(path: Path) -> Path:
    """The checkpoint at a path; for the folder of a run, its newest intact one."""
    from wholestep.train import load_checkpoint
    from wholestep.train.checkpoint.folder import is_checkpoint

    newest = path if is_checkpoint(path) else load_checkpoint(path).path
    assert newest is not None, "it was read from a folder"
    return newest


@checkpoint.command("prune")
@report_errors
def prune(
    run: Run,
    last: Annotated[int, typer.Option(min=1, help="Keep so many of the newest.")] = 1,
    best: Annotated[int, typer.Option(min=0, help="Keep so many of the best.")] = 1,
    monitor: Annotated[str, typer.Option(help="The number that says which is best.")] = "val_loss",
    mode: Annotated[str | None, typer.Option(help="min or max; by default that of the number's name.")] = None,
    dry: Dry = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove the checkpoints of a run except for the newest and the best ones."""
    from wholestep.train.checkpoint.manage import prune as remove

    doomed = remove(run, last, best, monitor, mode, dry=True)
    if doomed and not dry:
        if not yes:
            typer.confirm(f"Remove {len(doomed)} checkpoints: {', '.join(path.name for path in doomed)}?", abort=True)
        doomed = remove(run, last, best, monitor, mode)
    rows = [{"checkpoint": str(path), "state": "would be removed" if dry else "removed"} for path in doomed]
    print_rows(rows, as_json)


# -- the cache -------------------------------------------------------------------------------------------------------


@cache.command("ls")
@report_errors
def list_cache(as_json: AsJson = False) -> None:
    """Show the cache folder, and its bytes by kind of file."""
    from wholestep.compiler.runtime.cache.content_store import cache_entries, open_cache
    from wholestep.options import CompileOptions

    store = open_cache(CompileOptions())
    entries, now = cache_entries(store), time.time()
    kinds: dict[str, list[Any]] = {}
    for entry in entries:
        kinds.setdefault(" ".join(entry.suffixes) or "(empty)", []).append(entry)
    rows = [
        {"kind": kind, "entries": len(each), "bytes": sum(e.bytes for e in each), "days": (now - each[0].used) / 86400}
        for kind, each in kinds.items()
    ]
    if as_json:
        total = sum(entry.bytes for entry in entries)
        print(
            json.dumps({"folder": str(store.folder), "entries": len(entries), "bytes": total, "kinds": rows}, indent=1)
        )
        return
    print(f"{store.folder}: {len(entries)} entries, {sum(entry.bytes for entry in entries):,} bytes")
    print_rows(rows, as_json=False)


@cache.command("gc")
@report_errors
def collect(
    limit: Annotated[str, typer.Option(help="The bytes that may stay: 500MB, 2 GiB; 0 empties it.")] = "1GB",
    as_json: AsJson = False,
) -> None:
    """Remove the entries that were used longest ago until the cache fits its limit; entries of the last hour stay."""
    from wholestep.compiler.runtime.cache.content_store import cache_entries, evict, open_cache
    from wholestep.options import CompileOptions
    from wholestep.steps.options import bytes_of

    size = bytes_of(limit) if limit.strip() != "0" else 0
    store = open_cache(CompileOptions())
    evicted = evict(store, size)
    left = 0
    with contextlib.suppress(FileNotFoundError):  # another process may delete the file at the same time
        left = sum(entry.bytes for entry in cache_entries(store))
    facts = {"removed": len(evicted), "bytes": sum(entry.bytes for entry in evicted), "left": left}
    text = f"removed {facts['removed']} entries of {facts['bytes']:,} bytes; {left:,} bytes are left"
    print(json.dumps(facts) if as_json else text)

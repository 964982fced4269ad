"""Networks of other libraries, imported and compared with torch: `python -m benchmarks.networks ZOO.py`.

A zoo is a Python file with `ZOO`, a dict from names to functions, and `build(name, drop)`, which returns a module that
maps its arguments to one float tensor, and these arguments; `drop=False` disables everything random.  Each network is
imported with a symbolic batch and trains five steps of AdamW; losses, parameters and buffers are compared with torch's.
Results are appended to a file of JSON lines, so that a run can continue; `--write` writes docs/networks.md from it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.one_network import LIMITS, examine

# Times torch's own rounding error: the distance of two independently rounded runs is a little more than one of them.
NEAR = 2.0
PAGE = Path(__file__).parents[1] / "docs" / "networks.md"


def zoo_of(path: str) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location("zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = module
    spec.loader.exec_module(module)
    return module


# -- many --------------------------------------------------------------------------------------------------------


def run(zoo: Any, names: list[str], options: argparse.Namespace) -> None:
    """Runs each network in its own process with limits of time and memory; those already in the file are skipped."""
    file = Path(options.results)
    done = {(r["name"], r["dtype"]) for r in _read(file)}
    _load_once()
    for name in names:
        if (name, options.dtype) in done:
            continue
        begin, child = time.time(), os.fork()
        if child == 0:
            _one(zoo, name, options, file)
        ended = _wait(child, 1.5 * options.seconds)
        if ended:
            _append(file, {"name": name, "dtype": options.dtype, "stage": "crash", "error": ended})
        last = _read(file)[-1]
        said = last.get("error") or ("equal" if last.get("equal") else f"not equal: {last}")
        print(f"{time.time() - begin:6.1f} s  {name:40} {last['stage']:8} {said}", flush=True)


def _load_once() -> None:
    """Loads once what every child process would load: torch's exporter and the libraries of the zoos."""
    import torch

    import wholestep as ws

    torch.set_num_threads(1)  # threads do not survive a fork
    for library in ("timm", "transformers"):
        with suppress(ImportError):
            importlib.import_module(library)
    ws.from_torch(torch.nn.Linear(2, 2), torch.zeros(1, 2))


def _one(zoo: Any, name: str, options: argparse.Namespace, file: Path) -> None:
    warnings.simplefilter("ignore")
    os.setpgid(0, 0)  # including the compilers that it starts
    resource.setrlimit(resource.RLIMIT_AS, (options.memory << 30, options.memory << 30))
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(options.seconds)
    begin = time.time()
    result = examine(zoo, name, options.dtype, options.steps, options.mode)
    _append(file, {**result, "seconds": round(time.time() - begin)})
    os._exit(0)


def _wait(child: int, seconds: float) -> str:
    """The reason why a process failed."""
    end = time.time() + seconds
    while time.time() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return f"ended with status {status}" if status else ""
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"did not end within {seconds:.0f} s"


def _too_long(*_: object) -> None:
    raise TimeoutError("it took too long")


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _append(file: Path, result: dict[str, Any]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(result) + "\n")


# -- the page ----------------------------------------------------------------------------------------------------

HEAD = """\
# Networks of other libraries
Written by `python -m benchmarks.networks ZOO.py --write`. Each network is built with random weights, imported by
[`ws.from_torch`](guides/from-torch.md) without special treatment, and trained for five steps of AdamW by a compiled
session and by torch, without dropout and with weight decay on all parameters. The numbers are differences of the
first output, of the losses, and of the update of all parameters together, each relative to torch's. A network is
*equal* if these and its running statistics are within 1e-8 of torch's in float64, or 2e-3 in float32, and, if the
batch is symbolic, if the loss of a batch with one row less agrees within a hundred times that.

A network marked * computes parts in float32 whatever its dtype, like the norms and softmax of many transformers: for
the float64 column torch was made to compute them in float64. A network marked + draws random numbers even without
dropout: both sides got the same ones. In float32 the last number is the difference between torch's own updates in
float32 and in float64: if it is large, the network loses the digits, not a framework. It is a single sample: for
efficientvit_b0 torch's update differs from float64 by 5e-5, but by 2e-3, like ours, with images in channels_last or
with weights that differ in the last bit (two of eight times), although the gradients of the first step are as close
to float64 here as in torch; for mixnet_s it is 1e-3, and 2e-3 to 6e-2 with these changes.
"""


def page(results: list[dict[str, Any]]) -> str:
    """docs/networks.md."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for r in results:
        rows.setdefault(r["name"], {})[r["dtype"]] = r
    best = {name: _best(found) for name, found in sorted(rows.items())}
    exported = [r for r in best.values() if "torch.export cannot export" not in r.get("error", "")]
    imported = [r for r in exported if r["stage"] not in ("build", "import", "crash")]
    tried = [r for r in imported if r["stage"] == "done"]
    equal = [r for r in tried if r.get("equal")]
    symbolic = [r for r in imported if r.get("symbolic")]
    share = lambda part, whole: f"{len(part)} of {len(whole)}, {100 * len(part) / max(len(whole), 1):.0f} %"  # noqa: E731
    families = Counter(name.split(":")[0] for name in best)
    versions = Counter(r["torch"] for r in best.values() if "torch" in r)
    lines = [
        "| | |",
        "|---|---|",
        f"| networks examined | {len(best)} ({', '.join(f'{name} {n}' for name, n in families.items())}) |",
        f"| exported by torch | {share(exported, best)} |",
        f"| of the exported networks, imported | {share(imported, exported)} |",
        f"| of the exported networks, imported with a symbolic batch | {share(symbolic, exported)} |",
        f"| of the exported networks, trained for all steps | {share(tried, exported)} |",
        f"| of the exported networks, equal to torch | {share(equal, exported)} |",
        *_by_dtype(rows, share),
        f"| torch | {', '.join(f'{name} ({n})' for name, n in versions.most_common())} |",
        "",
        "| network | batch | float64: output, losses, update | float32: output, losses, update, torch's own | |",
        "|---|---|---|---|---|",
        *(_line(name, rows[name], found) for name, found in best.items()),
    ]
    return HEAD + "\n" + "\n".join(lines) + "\n"


def _best(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The most informative result."""
    return max(found.values(), key=lambda r: (bool(r.get("equal")), r["stage"] == "done", r["dtype"] == "float64"))


def _by_dtype(rows: dict[str, dict[str, dict[str, Any]]], share: Any) -> list[str]:
    lines = []
    for dtype, limit in LIMITS.items():
        tried = [
            equal_share[dtype] for equal_share in rows.values() if equal_share.get(dtype, {}).get("stage") == "done"
        ]
        if tried:
            lines.append(f"| within {limit:.0e} in {dtype} | {share([r for r in tried if r['equal']], tried)} |")
        measured = [r for r in tried if "rounding" in r]
        if steady := [r for r in measured if r["rounding"] <= limit]:
            equal_share = share([r for r in steady if r["equal"]], steady)
            lines.append(f"| of those whose update torch itself rounds by less than that in {dtype} | {equal_share} |")
        if others := [r for r in measured if r["rounding"] > limit]:
            equal_share = share([r for r in others if r["update"] <= NEAR * r["rounding"]], others)
            lines.append(
                f"| of the others, no further from torch than {NEAR:g} times torch's own rounding | {equal_share} |"
            )
    return lines


def _line(name: str, found: dict[str, dict[str, Any]], best: dict[str, Any]) -> str:
    wide, single = found.get("float64", {}), found.get("float32", {})
    verdict = "equal" if best.get("equal") else best.get("note") or best.get("error") or "not equal"
    batch = {True: "symbol", False: "fixed"}.get(best.get("symbolic"), "")  # type: ignore[arg-type]
    marks = (" *" if wide.get("widened") else "") + (" +" if wide.get("fixed draws") else "")
    mark = marks if "update" in wide else ""
    numbers = (_numbers(wide) + mark, _numbers(single, "rounding"))
    return f"| {name} | {batch} | {' | '.join(numbers)} | {verdict.replace('|', '/')} |"


def _numbers(r: dict[str, Any], *more: str) -> str:
    return ", ".join(f"{r[key]:.0e}" for key in ("forward", "losses", "update", *more) if key in r)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("zoo", help="a file with ZOO and build(name, drop)")
    parser.add_argument("names", nargs="*", help="all of them unless given")
    parser.add_argument("--results", default="networks.jsonl")
    parser.add_argument("--dtype", choices=LIMITS, default="float64")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--mode", choices=("both", "train"), default="both", help="export in one mode alone is faster")
    parser.add_argument("--seconds", type=int, default=300, help="for each network")
    parser.add_argument("--memory", type=int, default=16, help="for each network, in GiB")
    parser.add_argument("--write", action="store_true", help=f"{PAGE.name}, from the results")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page(_read(Path(options.results))))
        return
    zoo = zoo_of(options.zoo)
    run(zoo, options.names or list(zoo.ZOO), options)


if __name__ == "__main__":
    main()

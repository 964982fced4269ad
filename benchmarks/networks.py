"""Networks that others wrote, imported and trained beside torch: `python -m benchmarks.networks ZOO.py`.

A zoo is a Python file with `ZOO`, names to functions, and `build(name, drop)`, which gives a module that maps its
arguments to one tensor of floats, and these arguments; `drop=False` leaves out everything random.  Each network is
imported, its batch a symbol, and trains five steps of AdamW; losses, parameters and buffers are compared with torch's.
Steps are computed by the interpreter in float64, which needs no compiler, or with `--native` as everybody's are.
Results are kept in a file of JSON lines, so that a run can go on; `--write` makes the page of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "networks.md"
RATE, EPS, DECAY = 1e-3, 1e-5, 0.01
LIMITS = {"float64": 1e-8, "float32": 2e-3}


def zoo_of(path: str) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location("zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = module
    spec.loader.exec_module(module)
    return module


# -- one network -------------------------------------------------------------------------------------------------


def examine(zoo: Any, name: str, dtype: str, steps: int, native: bool) -> dict[str, Any]:
    """What becomes of a network: the stage that it reached, and how far its numbers are from torch's."""
    import wholestep as ws

    out: dict[str, Any] = {"name": name, "dtype": dtype, "steps": steps, "native": native, "stage": "build"}
    try:
        built = zoo.build(name, False)
        args = built.args
        if dtype == "float64":
            built.module.double()
            args = tuple(a.double() if a.is_floating_point() else a for a in args)
        start = {key: value.clone() for key, value in built.module.state_dict().items()}
        out["stage"] = "import"
        net = ws.from_torch(built.module, args, mode="train")
        out["symbolic"] = not net.fixed_batch
        out["stage"] = "torch"
        theirs = _by_torch(built.module, args, steps)
        out["stage"] = "train"
        ours = (
            _by_session(net, args, theirs["target"], steps)
            if native
            else _interpreted(net, args, theirs["target"], steps)
        )
        out.update(_differences(ours, theirs, start))
        worst = max(out[key] for key in ("forward", "losses", "update", "buffers"))
        out["equal"] = bool(worst < LIMITS[dtype])
        out["stage"] = "done"
    except BaseException as error:  # also the alarm
        out["error"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
    return out


def _by_torch(module: Any, args: Any, steps: int) -> dict[str, Any]:
    import torch

    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, eps=EPS, weight_decay=DECAY)
    losses: list[float] = []
    target = first = None
    for _ in range(steps):
        optimizer.zero_grad()
        out = module(*args)
        if target is None:
            drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
            target, first = drawn.to(out.dtype), out.detach().numpy().copy()
        loss = ((out - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    named = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    parameters = set(dict(module.named_parameters(remove_duplicate=False)))
    after = {name: value.detach().numpy().copy() for name, value in named.items()}
    return {"target": target, "losses": losses, "first": first, "after": after, "parameters": parameters}


def _described(net: Any, args: Any, target: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    import wholestep as ws

    spec = lambda a: ws.Spec(tuple(a.shape), str(a.dtype).split(".")[1])  # noqa: E731
    names = [node.attrs.name for node in net._program.graph.inputs]
    feeds = {**{name: a.numpy() for name, a in zip(names, args)}, "labels": target.numpy()}
    optimizer = ws.AdamW(lr=RATE, eps=EPS, weight_decay=DECAY, decay_on=("*",))
    return {name: spec(a) for name, a in zip(names, args)}, spec(target), optimizer, feeds


def _loss(output: Any, target: Any) -> Any:
    return ((output - target) * (output - target)).mean()


def _by_session(net: Any, args: Any, target: Any, steps: int) -> dict[str, Any]:
    import wholestep as ws

    inputs, targets, optimizer, feeds = _described(net, args, target)
    session = ws.build_session(net, inputs=inputs, targets=targets, loss=_loss, optimizer=optimizer, threads=1)
    losses, first = [], None
    for _ in range(steps):
        losses.append(float(session.step(feeds)))
        first = np.array(session.get("output")) if first is None else first
    return {"losses": losses, "first": first, "after": net.state_dict()}


def _interpreted(net: Any, args: Any, target: Any, steps: int) -> dict[str, Any]:
    """The same step by the oracle of the compiler: no kernels, and every number in float64."""
    from wholestep.compiler.frontend.initializers import materialize
    from wholestep.compiler.ir.graph import rewrite
    from wholestep.compiler.ir.interpret import interpret
    from wholestep.compiler.passes.autodiff.reverse import expand_gradients
    from wholestep.compiler.passes.cse import share_common_nodes
    from wholestep.steps.module import training_graph
    from wholestep.steps.train import train_graph

    inputs, targets, optimizer, feeds = _described(net, args, target)
    recorded = training_graph(net, inputs, targets, _loss)
    graph = share_common_nodes(expand_gradients(train_graph(recorded, optimizer)))
    graph = rewrite(graph, lambda n: n.inputs[0] if n.op in ("by_mode", "stop_gradient") else n)
    before = net.state_dict()
    state = {}
    for name, node in graph.states().items():
        shape = tuple(int(e) for e in node.type.shape)
        made = materialize(node.attrs.init, shape, node.type.dtype, 0, name) if name not in before else before[name]
        state[name] = np.array(made)
    losses, first = [], None
    for step in range(steps):
        result = interpret(graph, inputs=feeds, state=state, step=step)
        state = result.state
        losses.append(float(result.outputs["loss"]))
        first = result.outputs["output"] if first is None else first
    after = {**before, **{name: value for name, value in state.items() if name in before}}
    for name, holding in net._holdings.items():
        after[name] = after[holding.same_as or name]
    return {"losses": losses, "first": first, "after": after}


def _differences(ours: dict[str, Any], theirs: dict[str, Any], start: dict[str, Any]) -> dict[str, float]:
    """Relative to the largest value of the output, to each loss, to the length of the update, to each buffer."""
    output = theirs["first"]
    forward = float(np.abs(ours["first"] - output).max() / max(np.abs(output).max(), 1e-12))
    losses = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(ours["losses"], theirs["losses"]))
    missed = moved = buffers = 0.0
    for name, found in ours["after"].items():
        wanted = _real(theirs["after"][name])
        if name in theirs["parameters"]:
            missed += float(((found - wanted) ** 2).sum())
            moved += float(((wanted - _real(start[name].numpy())) ** 2).sum())
        elif found.size:
            wanted = wanted.astype(float)
            buffers = max(buffers, float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max())))
    return {"forward": forward, "losses": losses, "update": (missed / max(moved, 1e-30)) ** 0.5, "buffers": buffers}


def _real(array: Any) -> Any:
    return np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array


# -- many --------------------------------------------------------------------------------------------------------


def run(zoo: Any, names: list[str], options: argparse.Namespace) -> None:
    """Each in a process of its own, for so many seconds; what is in the file already is left out."""
    file = Path(options.results)
    done = {json.loads(line)["name"] for line in file.read_text().splitlines()} if file.exists() else set()
    for name in names:
        if name in done:
            continue
        begin, child = time.time(), os.fork()
        if child == 0:
            warnings.simplefilter("ignore")
            signal.signal(signal.SIGALRM, _too_long)
            signal.alarm(options.seconds)
            result = examine(zoo, name, options.dtype, options.steps, options.native)
            with file.open("a") as lines:
                lines.write(json.dumps(result) + "\n")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            with file.open("a") as lines:
                lines.write(json.dumps({"name": name, "stage": "crash", "error": f"status {status}"}) + "\n")
        last = json.loads(file.read_text().splitlines()[-1])
        print(f"{time.time() - begin:6.1f} s  {name:40} {last['stage']:8} {last.get('error', '')}", flush=True)


def _too_long(*_: object) -> None:
    raise TimeoutError("it took too long")


# -- the page ----------------------------------------------------------------------------------------------------


def page(results: list[dict[str, Any]]) -> str:
    """docs/networks.md."""
    exported = [r for r in results if "torch.export cannot export" not in r.get("error", "")]
    imported = [r for r in exported if r["stage"] not in ("build", "import", "crash")]
    tried = [r for r in imported if r["stage"] == "done"]
    equal = [r for r in tried if r.get("equal")]
    symbolic = [r for r in imported if r.get("symbolic")]
    share = lambda part, whole: f"{len(part)} of {len(whole)}"  # noqa: E731
    families = Counter(r["name"].split(":")[0] for r in results)
    lines = [
        "# Networks that others wrote",
        "Written by `python -m benchmarks.networks ZOO.py --write` from results beside torch: each",
        "network is built with random",
        "weights, imported by [`ws.from_torch`](guides/from-torch.md), and trained with AdamW beside torch, dropout",
        "off, decay on all parameters. Steps are those of the interpreter, in the dtype of the column. Equal means:",
        "output, losses, running statistics and the update of all parameters together within 1e-8 of torch's in",
        "float64, 2e-3 in float32. Where a network computes parts of itself in float32 whatever its dtype, as norms",
        "and softmax of many transformers do, `--widen` had torch compute them in float64 too: compared is the",
        "meaning, not float32's rounding. Rows may be of several runs, with and without it;",
        "a column has their steps.",
        "Networks without numbers were imported and not trained.",
        "",
        "| | |",
        "|---|---|",
        f"| networks examined | {len(results)} ({', '.join(f'{name} {n}' for name, n in families.items())}) |",
        f"| exported by torch | {share(exported, results)} |",
        f"| of these imported | {share(imported, exported)} |",
        f"| of these trained to the end of the steps | {share(tried, imported)} |",
        f"| of these equal to torch | {share(equal, tried)} |",
        f"| imported with a symbolic batch | {share(symbolic, imported)} |",
        "",
        "| network | dtype | steps | batch | output | losses | update | |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(r) for r in sorted(results, key=lambda r: r["name"])),
    ]
    return "\n".join(lines) + "\n"


def widen() -> None:
    """Casts to float32 inside a network become casts to float64, in torch itself: for comparisons in float64."""
    import torch
    import torch.nn.functional as F

    wide = lambda v: torch.float64 if v is torch.float32 else v  # noqa: E731
    cast = torch.Tensor.to
    torch.Tensor.float = torch.Tensor.double
    torch.Tensor.to = lambda self, *a, **k: cast(self, *map(wide, a), **{n: wide(v) for n, v in k.items()})
    for name in ("softmax", "log_softmax"):
        known = getattr(F, name)
        setattr(F, name, lambda x, dim=None, _stacklevel=3, dtype=None, known=known: known(x, dim))


def _line(r: dict[str, Any]) -> str:
    numbers = [f"{r[key]:.0e}" if key in r else "" for key in ("forward", "losses", "update")]
    said = r.get("note") or r.get("error") or ("not equal" if "equal" in r else "imported")
    verdict = "equal" if r.get("equal") else said.replace("|", "/")
    batch = {True: "symbol", False: "fixed"}.get(r.get("symbolic"), "")  # type: ignore[arg-type]
    return (
        f"| {r['name']} | {r.get('dtype', '')} | {r.get('steps', '')} | {batch} | {' | '.join(numbers)} | {verdict} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("zoo", help="a file with ZOO and build(name, drop)")
    parser.add_argument("names", nargs="*", help="all of them unless given")
    parser.add_argument("--results", default="networks.jsonl")
    parser.add_argument("--dtype", choices=LIMITS, default="float64")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=300, help="for each network")
    parser.add_argument("--native", action="store_true", help="compiled, rather than interpreted")
    parser.add_argument("--widen", action="store_true", help="float32 inside a network is float64, too")
    parser.add_argument("--write", action="store_true", help=f"{PAGE.name}, from the results")
    options = parser.parse_args()
    if not options.write:
        zoo = zoo_of(options.zoo)
        if options.widen:
            widen()
        run(zoo, options.names or list(zoo.ZOO), options)
        return
    results = [json.loads(line) for line in Path(options.results).read_text().splitlines()]
    PAGE.write_text(page(list({r["name"]: r for r in results}.values())))


if __name__ == "__main__":
    main()

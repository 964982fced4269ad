"""One network of another library, trained by a compiled session and by torch: the differences of the values."""

from __future__ import annotations

import shlex
from importlib.metadata import version
from typing import Any

import numpy as np

RATE, EPS, DECAY = 1e-3, 1e-5, 0.01
LIMITS = {"float64": 1e-8, "float32": 2e-3}
MEASURES = ("forward", "losses", "update", "buffers")
FEWER = 100.0  # times the limit, for the loss of a smaller batch: it only tests that the batch is symbolic


def examine(zoo: Any, name: str, dtype: str, steps: int, mode: str = "both") -> dict[str, Any]:
    """The result for a network: the stage that it reached, and the differences from torch's values."""
    out: dict[str, Any] = {"name": name, "dtype": dtype, "steps": steps, "mode": mode, "stage": "build"}
    out["torch"] = version("torch").split("+")[0]
    try:
        net, module, args = _imported(zoo, name, dtype, out) if dtype == "float32" else _in_float64(zoo, name, out)
        if any(node.op == "random" for node in net._program.graph.nodes):
            draw_the_same()
            out["fixed draws"] = True
            net, module, args = _imported(zoo, name, dtype, out)
        _compare(net, module, args, steps, out)
        if dtype == "float32":
            again = zoo.build(name, False)
            try:
                out["rounding"] = _rounding_of_torch(again.module, again.args, steps, module)
            except RuntimeError as error:  # ops of torch without float64, such as its expert products
                out["no rounding"] = str(error).split("\n")[0][:300]
        out["stage"] = "done"
    except BaseException as error:  # also timeouts and memory errors
        out["error"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
    return out


def _imported(zoo: Any, name: str, dtype: str, out: dict[str, Any]) -> tuple[Any, Any, tuple[Any, ...]]:
    import wholestep as ws

    out["stage"] = "build"
    built = zoo.build(name, False)
    args = built.args
    if dtype == "float64":
        built.module._apply(_doubled)
        args = tuple(map(_doubled, args))
    out["stage"] = "import"
    net = ws.from_torch(built.module, args, mode=out["mode"])
    out["symbolic"] = not net.fixed_batch
    return net, built.module, args


def _in_float64(zoo: Any, name: str, out: dict[str, Any]) -> tuple[Any, Any, tuple[Any, ...]]:
    """Imports the network; if it computes in float32 inside, or mixes both types, with torch widened to float64."""
    try:
        result = _imported(zoo, name, "float64", out)
        if not _computes_in(result[0], "float32"):
            return result
    except Exception as error:
        if out["stage"] != "import":
            raise
        out["as it is"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
    widen()
    out["widened"] = True
    return _imported(zoo, name, "float64", out)


def _doubled(x: Any) -> Any:
    import torch

    return x.double() if x.is_floating_point() else x.to(torch.complex128) if x.is_complex() else x


def _computes_in(net: Any, dtype: str) -> bool:
    """Does a network of another dtype compute some parts in this dtype?"""
    return any(t.dtype.name == dtype and n.inputs for n in net._program.graph.nodes for t in n.results)


def widen() -> None:
    """Torch creates float64 tensors if a network requests float32 or no dtype, so that rounding is not compared."""
    import torch
    import torch.nn.functional as F

    torch.set_default_dtype(torch.float64)
    kinds = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    wide = lambda v: kinds.get(v, v) if isinstance(v, torch.dtype) else v  # noqa: E731

    def widened(known: Any) -> Any:
        return lambda *a, **k: known(*map(wide, a), **{n: wide(v) for n, v in k.items()})

    torch.Tensor.float = torch.Tensor.double
    torch.Tensor.to = widened(torch.Tensor.to)
    for name in ("tensor", "arange", "linspace", "zeros", "ones", "full", "empty", "eye"):
        setattr(torch, name, widened(getattr(torch, name)))
    for name in ("softmax", "log_softmax"):
        setattr(F, name, widened(getattr(F, name)))
        setattr(torch, name, widened(getattr(torch, name)))


def draw_the_same() -> None:
    """Replaces random draws by evenly spread numbers, equal for all rows, so that torch and we use the same ones."""
    import torch

    def drawn(*size: Any, **named: Any) -> Any:
        shape = tuple(size[0]) if isinstance(size[0], tuple | list) else size
        count = int(np.prod(shape[1:], dtype=int))
        mixed = torch.tensor(np.random.default_rng(3).permutation(count).tolist())
        return (
            ((mixed + 0.5) / count).to(named.get("dtype") or torch.get_default_dtype()).reshape(shape[1:]).expand(shape)
        )

    torch.rand = drawn
    torch.rand_like = lambda x, **named: drawn(tuple(x.shape), dtype=x.dtype)


def _compare(net: Any, module: Any, args: tuple[Any, ...], steps: int, out: dict[str, Any]) -> None:
    start = {key: value.clone() for key, value in module.state_dict().items()}
    out["stage"] = "torch"
    theirs = _by_torch(module, args, steps, not net.fixed_batch)
    out["stage"] = "train"
    ours = _by_session(net, args, theirs, steps)
    out.update(_differences(ours, theirs, start))
    limit = LIMITS[out["dtype"]]
    out["equal"] = bool(max(out[key] for key in MEASURES) < limit and out["fewer_rows"] < FEWER * limit)


# -- the two ----------------------------------------------------------------------------------------------------


def _by_torch(module: Any, args: Any, steps: int, fewer: bool) -> dict[str, Any]:
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
        losses.append(float(loss.detach()))
    named = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    parameters = set(dict(module.named_parameters(remove_duplicate=False)))
    after = {name: value.detach().numpy().copy() for name, value in named.items()}
    result = {"target": target, "losses": losses, "first": first, "after": after, "parameters": parameters}
    return {**result, **(_with_fewer_rows(module, args, target) if fewer else {})}


def _with_fewer_rows(module: Any, args: Any, target: Any) -> dict[str, Any]:
    """Compares the loss of a smaller batch: is the batch size really symbolic?"""
    import torch

    rows = len(args[0])
    with torch.no_grad():
        out = module(*(a[: rows - 1] for a in args))
    axes = {axis: new for axis, (old, new) in enumerate(zip(target.shape, out.shape)) if old != new}
    smaller = target[tuple(slice(n) for n in out.shape)]
    symbolic = [axis for axis in axes if target.shape[axis] == rows]
    if len(symbolic) != len(axes):
        return {}  # a multiple of the batch, which cannot be declared for the target of a session
    return {"smaller": smaller, "loss": float(((out - smaller) ** 2).mean()), "axes": symbolic}


def _by_session(net: Any, args: Any, theirs: dict[str, Any], steps: int) -> dict[str, Any]:
    import wholestep as ws
    from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler

    is_symbolic, target = "loss" in theirs, theirs["target"]
    spec = lambda a, axes: ws.Spec(  # noqa: E731
        tuple("batch" if i in axes and is_symbolic else n for i, n in enumerate(a.shape)), str(a.dtype).split(".")[1]
    )
    names = [node.attrs.name for node in net._program.graph.inputs]
    feeds = {**{name: a.numpy() for name, a in zip(names, args)}, "labels": target.numpy()}
    session = ws.build_session(
        net,
        inputs={name: spec(a, [0]) for name, a in zip(names, args)},
        targets=spec(target, theirs.get("axes", [])),
        capacity={"batch": len(args[0])} if is_symbolic else None,
        loss=lambda output, wanted: ((output - wanted) * (output - wanted)).mean(),
        optimizer=ws.AdamW(lr=RATE, eps=EPS, weight_decay=DECAY, decay_on=("*",)),
        threads=1,
        # the same bits as -O3, with a quarter of the compile time
        options=ws.CompileOptions(compiler=shlex.join([*find_compiler().command, "-Og"])),
    )
    losses, first = [], None
    for _ in range(steps):
        losses.append(float(session.step(feeds)))
        first = np.array(session.get("output")) if first is None else first
    result = {"losses": losses, "first": first, "after": {k: np.array(v) for k, v in net.state_dict().items()}}
    if is_symbolic:
        fewer = {name: a[: len(args[0]) - 1].numpy() for name, a in zip(names, args)}
        result["loss"] = float(session.step({**fewer, "labels": theirs["smaller"].numpy()}))
    return result


# -- their difference -------------------------------------------------------------------------------------------


def _differences(ours: dict[str, Any], theirs: dict[str, Any], start: dict[str, Any]) -> dict[str, float]:
    """Differences relative to the largest output, to each loss, to the norm of the update, and to each buffer."""
    output = theirs["first"]
    forward = float(np.abs(ours["first"] - output).max() / max(np.abs(output).max(), 1e-12))
    pairs = list(zip(ours["losses"], theirs["losses"]))
    buffers = 0.0
    for name, found in ours["after"].items():
        if name not in theirs["parameters"] and found.size:
            wanted = _real(theirs["after"][name]).astype(float)
            buffers = max(buffers, float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max())))
    return {
        "forward": forward,
        "losses": max(_apart(a, b) for a, b in pairs),
        "update": _update_apart(ours["after"], theirs["after"], start, theirs["parameters"]),
        "buffers": buffers,
        "fewer_rows": _apart(ours["loss"], theirs["loss"]) if "loss" in ours else 0.0,
    }


def _apart(a: float, b: float) -> float:
    return abs(a - b) / max(abs(b), 1e-12)


def _update_apart(ours: dict[str, Any], theirs: dict[str, Any], start: dict[str, Any], names: set[str]) -> float:
    missed = moved = 0.0
    for name in names & set(ours):
        wanted = _real(theirs[name])
        missed += float(((_real(ours[name]) - wanted) ** 2).sum())
        moved += float(((wanted - _real(start[name].numpy())) ** 2).sum())
    return float((missed / max(moved, 1e-30)) ** 0.5)


def _real(array: Any) -> Any:
    return np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array


def _rounding_of_torch(module: Any, args: Any, steps: int, trained: Any) -> float:
    """The difference of torch's own updates in float32 and in float64."""
    import torch

    start = {name: value.clone() for name, value in module.state_dict().items()}
    after = {name: value.detach().numpy() for name, value in trained.state_dict().items()}
    torch.set_default_dtype(torch.float64)
    exact = _by_torch(module._apply(_doubled), tuple(map(_doubled, args)), steps, False)
    return _update_apart(after, exact["after"], start, exact["parameters"])

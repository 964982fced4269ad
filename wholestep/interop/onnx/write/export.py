"""`ws.export_onnx`: write a network, or a whole training step, as an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import CheckpointError, OptionError, UsageError
from wholestep.interop.onnx.read.reading import need_onnx
from wholestep.nn.module.module import SEEN, Module
from wholestep.steps.module import Inputs, forward_graph
from wholestep.steps.states import numbers

if TYPE_CHECKING:
    from wholestep.session.session import Session

OPSETS = (20, 21, 22, 23)
EXTERNAL = 1 << 30  # bytes: larger models store their arrays in a second file
Array = np.ndarray[Any, Any]


def export_onnx(
    net: Module | Session,
    path: str | PathLike[str],
    *,
    example: object = None,
    opset: int = 20,
    external_data: bool | None = None,
) -> None:
    """Write the prediction of a network as an ONNX file, which `ws.from_onnx` and other runtimes read; for a session,
    the whole training step.

    Parameters are initialisers under their names.  The first axis of every input is symbolic, whatever the example has.
    Dropout and batch norms are written as such, so that who imports the file can train it.

    Args:
        net: a module.  Of a session that trains, the file has its step: inputs are those of the step, then all
            parameters, moments and runtime scalars with their values of now as defaults; outputs those of the step,
            then `next.<name>` for everything that it changes, to be given to the next step.
        example: the network's inputs: an array, a tuple or a dict of arrays, or `ws.Spec`s; not needed for a
            network that has been trained, evaluated or asked for predictions.
        opset: 20 to 23; 23 has operators for attention and `rms_norm`, which before are functions in the file.
        external_data: write the arrays to a second file, `<path>.data`; by default if they have more than 1 GiB.

    Example: `ws.export_onnx(net, "net.onnx", example=images[:1])`.
    """
    need_onnx()
    if opset not in OPSETS:
        fail(OptionError, f"export_onnx: opset must be one of {', '.join(map(str, OPSETS))}; received {opset!r}.")
    if _is_session(net):
        from wholestep.interop.onnx.write.model import step_model

        write_model(step_model(net, opset), Path(path), external_data)
        return
    if not isinstance(net, Module):
        fail(UsageError, f"export_onnx takes a ws.nn.Module or a session; received {type(net).__name__}.")
    graph, _ = forward_graph(net, _inputs(net, example))
    from wholestep.interop.onnx.write.model import Named, make_model

    whole = graph.to_ir()
    values = numbers(net)
    used = {name: values[_first_name(net, graph, name)] for name in graph.states if name in whole.states()}
    owners = {name: graph.owners[name] for name in used if name in graph.owners}
    named = Named(
        used,
        {u.name: u.node for u in whole.updates},
        [name for name, owned in owners.items() if not owned.trained],
        [name for name, owned in owners.items() if owned.trained and owned.frozen],
    )
    model = make_model(whole, named, opset, type(net).__name__)
    write_model(model, Path(path), external_data)


def _is_session(net: object) -> TypeGuard[Session]:
    from wholestep.session.session import Session

    return isinstance(net, Session)


def _first_name(net: Module, graph: Any, name: str) -> str:
    owner = graph.owners.get(name)
    return next((n for n, owned in net.named_arrays().items() if owned is owner), name)


def _inputs(net: Module, example: object) -> Inputs:
    if example is None:
        seen = net.__dict__.get(SEEN)
        if seen is None:
            fail(UsageError, "export_onnx needs to know what the network is called on: example=images[:1].")
        inputs: Inputs = seen
        return inputs
    if isinstance(example, Spec):
        return example
    if isinstance(example, Mapping):
        return {name: _spec(value) for name, value in example.items()}
    if isinstance(example, tuple | list) and not all(isinstance(v, int | float) for v in example):
        import inspect

        names = list(inspect.signature(net.forward).parameters)
        several = len(names) >= len(example) and all(hasattr(v, "shape") for v in example)
        if several and len(example) > 1:
            return {name: _spec(value) for name, value in zip(names, example)}
        return _spec(example[0]) if several else _spec(example)
    return _spec(example)


def _spec(value: object) -> Spec:
    """The spec of an example; its first axis is symbolic."""
    if isinstance(value, Spec):
        return value
    example: Any = value
    array = example.detach().cpu().numpy() if hasattr(example, "detach") else np.asarray(example)
    if array.ndim == 0:
        fail(UsageError, "export_onnx: an example is a batch, an array whose first axis counts examples.")
    return Spec(("batch", *array.shape[1:]), array.dtype.name)


def write_model(model: Any, target: Path, external_data: bool | None) -> None:
    """Check a model and write it; large models store their arrays in a second file."""
    onnx = need_onnx()
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    apart = size > EXTERNAL if external_data is None else external_data
    place = f"{target.name}.data"
    try:
        if not apart:
            onnx.checker.check_model(model)
        else:
            (target.parent / place).unlink(missing_ok=True)
        onnx.save_model(model, str(target), save_as_external_data=apart, location=place, size_threshold=0)
        if apart:
            onnx.checker.check_model(str(target))
    except OSError as error:
        raise CheckpointError(f"the network could not be written to {target}: {error}.") from error

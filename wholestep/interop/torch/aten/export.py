"""Runs `torch.export`: a module as a graph of functional ATen ops, in training or in evaluation mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from wholestep.compiler.frontend.trace import fail, record_at_line
from wholestep.errors import TrainingWarning, UsageError
from wholestep.interop.torch.aten.backwards import keep_autograd_functions
from wholestep.interop.torch.aten.branches import NotTraceableError, traceable
from wholestep.interop.torch.aten.functionalize import functionalize
from wholestep.interop.torch.aten.python_state import PythonState, Value
from wholestep.interop.torch.aten.stop_gradient import mark_stopped
from wholestep.interop.torch.aten.table import INTERRUPTED, find_row, load_table
from wholestep.interop.torch.aten.user_lines import failing_line, watched_clocks
from wholestep.records import dataclass


@torch.library.custom_op("wholestep::elementwise", mutates_args=())
def elementwise(x: torch.Tensor, op: str, numbers: list[float]) -> torch.Tensor:
    """A placeholder for an op of `CLAMPS` during decomposition."""
    raise NotImplementedError(f"a placeholder is replaced by {op} before anything is computed")


@elementwise.register_fake
def _(x: Any, op: str, numbers: list[float]) -> Any:
    return torch.empty_like(x)


# torch derives the shape of these ops from decompositions into a dozen ops, several times: with symbolic sizes that
# took half of the import time of a MobileNet.
CLAMPS = ("hardtanh", "relu6", "hardswish", "hardsigmoid")


@dataclass(frozen=True)
class Exported:
    """An exported functional program, with the kind of each placeholder."""

    program: Any
    mode: str
    touched: tuple[Value, ...] = ()  # Python values that changed, and clocks that were read, during the trace

    @property
    def nodes(self) -> list[Any]:
        return list(self.program.graph.nodes)

    def placeholders(self) -> Iterator[tuple[Any, Any, str | None]]:
        """Each placeholder with its kind, and the name of its parameter, buffer or constant."""
        specs = self.program.graph_signature.input_specs
        for node, spec in zip((n for n in self.nodes if n.op == "placeholder"), specs, strict=True):
            yield node, spec.kind, spec.target

    def outputs(self) -> Iterator[tuple[Any, Any, str | None]]:
        """Each result with its kind, and the name of the buffer that it updates."""
        (last,) = (n for n in self.nodes if n.op == "output")
        for value, spec in zip(last.args[0], self.program.graph_signature.output_specs, strict=True):
            yield value, spec.kind, spec.target

    def nodes_of_results(self) -> list[Any]:
        """The nodes that a result or an update depends on; nodes used only by checks are omitted."""
        reached, todo = (
            set(),
            [v for v, kind, _ in self.outputs() if isinstance(v, torch.fx.Node) and kind is not TOKEN],
        )
        while todo:
            node = todo.pop()
            if node not in reached:
                reached.add(node)
                todo += node.all_input_nodes
        return [n for n in self.nodes if n in reached]

    def number(self, name: str) -> Any:
        """The tensor of a parameter, buffer or constant."""
        held = self.program.state_dict
        return held[name] if name in held else self.program.constants[name]

    @property
    def mutations(self) -> set[str]:
        """The buffers, and frozen parameters, that a call changes."""
        return {str(name) for _, kind, name in self.outputs() if kind in CHANGES}


INPUT, PARAMETER, BUFFER = InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER
RESULT, CHANGES = OutputKind.USER_OUTPUT, (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
TOKEN = OutputKind.TOKEN  # orders torch's run-time checks, which are omitted


@dataclass(frozen=True)
class ExampleCall:
    """The arguments of the example call of a module."""

    args: tuple[Any, ...]
    named: Mapping[str, Any]
    symbols: Mapping[int, Mapping[int, str]]  # id of a tensor -> axis -> name of its symbol
    shared: str = ""  # name of the single dict argument that contains all inputs


def export(module: Any, call: ExampleCall, mode: str) -> Exported:
    """Export a module as functional ATen ops; ops with a row in the table are not decomposed.

    If the export fails because the module creates buffers in its first call, it is called once and exported again.
    """
    load_table()
    try:
        return _export(module, call, mode)
    except UsageError as error:
        first = error
    if not creates_state_when_called(module, call, mode):
        raise first
    try:
        return _export(module, call, mode)
    except UsageError:
        raise first from None


def creates_state_when_called(module: Any, call: ExampleCall, mode: str) -> bool:
    """Call a module on its example; return whether the call created new state.  Weights are unchanged."""
    before = {m: _state_names(m) for m in module.modules()}
    numbers = {name: value.clone() for name, value in module.state_dict(keep_vars=True).items() if _is_tensor(value)}
    try:
        with in_mode(module, mode), torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(*call.args, **call.named)
    except INTERRUPTED:
        raise
    except Exception:  # any error: the export has already reported the problem
        return False
    with torch.no_grad():
        for name, value in module.state_dict(keep_vars=True).items():
            if name in numbers and _is_tensor(value) and value.shape == numbers[name].shape:
                value.copy_(numbers[name])
    return any(_state_names(m) - before.get(m, set()) for m in module.modules())


def _state_names(module: Any) -> set[str]:
    parts = {**vars(module), **module._buffers}
    return {name for name, value in parts.items() if value is not None}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _export(module: Any, call: ExampleCall, mode: str) -> Exported:
    with in_mode(module, mode), _restore_after_trace(module) as state, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with keep_autograd_functions() as forgotten, traceable(), watched_clocks() as clocks:
            program = _export_mode(module, call, mode)
        touched = (*state.seen, *(Value("", name, "clock") for name in clocks))
        mark_stopped(program)
        done = functionalize(program) or _decompose(program, module, mode)
    if forgotten and mode == "train":
        warnings.warn(
            f"{type(module).__name__} uses {', '.join(sorted(forgotten))}, whose backward cannot be exported. The "
            "gradient here is that of the forward.",
            TrainingWarning,
            stacklevel=2,
        )
    exported = Exported(done, mode, touched)
    for _, kind, name in exported.outputs():
        trained = kind is OutputKind.PARAMETER_MUTATION and exported.number(str(name)).requires_grad
        if trained or kind not in (RESULT, *CHANGES, TOKEN):
            fail(
                UsageError,
                f"the module changes {name!r} ({kind.name.lower().replace('_', ' ')}) in its forward; only buffers, "
                "and parameters that need no gradient, may change"
                + (", as embeddings with max_norm would: normalise what is read from it." if trained else "."),
            )
    return exported


def _decompose(program: Any, module: Any, mode: str) -> Any:
    """The program in functional ops, traced again by torch."""
    _hide_clamps(program)
    try:
        done = program.run_decompositions(_table())
        _show_clamps(done)
    except INTERRUPTED:
        raise
    except Exception as error:
        fail(UsageError, f"torch cannot decompose {type(module).__name__} in {mode} mode: {_first_line(error)}")
    return done


def _export_mode(module: Any, call: ExampleCall, mode: str) -> Any:
    sizes = _collection(call)
    if sizes is not None:
        try:
            return torch.export.export(module, call.args, dict(call.named), dynamic_shapes=sizes, strict=False)
        except INTERRUPTED:
            raise
        # any error of torch: the export may still work with fixed sizes, and then a warning says so
        except Exception as error:
            _refuse_untraceable(error)
    try:
        return torch.export.export(module, call.args, dict(call.named), strict=False)
    except INTERRUPTED:
        raise
    except Exception as error:
        _refuse_untraceable(error)
        with record_at_line(failing_line(error)):
            fail(UsageError, f"torch.export cannot export {type(module).__name__} in {mode} mode: {_reason(error)}")


def _refuse_untraceable(error: BaseException | None) -> None:
    """Re-raise the error that `traceable` raised inside forward, without torch's wrapper."""
    while error is not None:
        if isinstance(error, NotTraceableError):
            raise UsageError(str(error)) from None
        error = error.__cause__ or error.__context__


_BRANCH = (
    "forward branches on a value that depends on the data or on random numbers (if, while, int(), .item()), and a step "
    "computes the same ops every time. Choose with torch.where"
)


def _reason(error: Exception) -> str:
    return f"{_BRANCH} ({_first_line(error)})" if "data-dependent" in str(error) else _first_line(error)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def warn_fixed(what: str) -> None:
    """Warn that sizes that should be symbolic are fixed."""
    warnings.warn(
        f"{what}. Data of other sizes needs another import; batch=None says that this is meant.",
        TrainingWarning,
        stacklevel=2,
    )


def _collection(call: ExampleCall) -> Any:
    if not call.symbols:
        return None
    sizes = torch.export.ShapesCollection()
    for value in _tensors([*call.args, *call.named.values()]):
        if id(value) in call.symbols:
            sizes[value] = dict.fromkeys(call.symbols[id(value)], torch.export.Dim.AUTO)
    return sizes


def _tensors(values: Sequence[Any]) -> Iterator[Any]:
    leaves, _ = torch.utils._pytree.tree_flatten(list(values))
    return (v for v in leaves if isinstance(v, torch.Tensor))


@contextmanager
def in_mode(module: Any, mode: str) -> Iterator[None]:
    """Set the mode of a module that is in training; submodules in `eval()` stay so."""
    before = {m: m.training for m in module.modules()}
    try:
        if mode == "train" and not module.training:
            module.train()
        elif mode == "eval":
            module.eval()
        yield
    finally:
        for m, training in before.items():
            m.training = training


@contextmanager
def _restore_after_trace(module: Any) -> Iterator[PythonState]:
    """Undo what a module assigns to itself or stores in a list or dict during the trace, where it would hold fake
    tensors.

    Changes are read at the end of forward: torch.export takes back assignments to attributes.
    """
    state = PythonState(module)
    hook = module.register_forward_hook(lambda *_: state.see())
    try:
        yield state
    finally:
        hook.remove()
        state.restore()


def _hide_clamps(program: Any) -> None:
    for node in program.graph_module.graph.nodes:
        name = str(node.target).removesuffix(".default").removeprefix("aten.")
        if name.rstrip("_") not in CLAMPS or node.kwargs or not all(isinstance(n, int | float) for n in node.args[1:]):
            continue
        operand, *numbers = node.args
        if name.endswith("_") and not (_is_fresh(operand) and list(operand.users) == [node]):
            continue  # other views of the same memory see its writes
        if _KEPT(f"aten.{name.rstrip('_')}.default") and operand.meta["val"].is_floating_point():
            node.target = torch.ops.wholestep.elementwise.default
            node.args = (operand, name.rstrip("_"), [float(n) for n in numbers])
    program.graph_module.recompile()


def _show_clamps(program: Any) -> None:
    for node in program.graph_module.graph.nodes:
        if node.target is torch.ops.wholestep.elementwise.default:
            operand, name, numbers = node.args
            node.target, node.args = getattr(torch.ops.aten, name).default, (operand, *numbers)
    program.graph_module.recompile()


def _is_fresh(node: Any) -> bool:
    """Does a value have memory that no other value shares?"""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and all(r.alias_info is None for r in schema.returns)


_KEPT: Callable[[str], bool] = lambda name: (row := find_row(name)) is not None and row.whole  # noqa: E731


def _table() -> Any:
    """Torch's decompositions, except for ops that have a row in our table."""
    table = torch.export.default_decompositions()
    for op in list(table):
        name = str(op)
        if name.startswith("aten.") and _KEPT(name):
            del table[op]
    return table

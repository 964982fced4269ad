"""Networks whose `forward` is a graph that was recorded before: imported from another library, or read from a file."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.control.replay import replay
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.parser import parse_graph
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.types import Dim, as_dtype
from wholestep.errors import CheckpointError, DTypeError, InputError, UsageError, WholestepError
from wholestep.nn.derived import make_subclass
from wholestep.nn.layers.table_encoding import encoding_metadata
from wholestep.nn.module import trace
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import Buffer, Parameter
from wholestep.nn.state.weight_files import read_weights
from wholestep.nn.state.weights import read_header, save_arrays
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.nn.state.state_dict_diff import LoadReport, Rename

Array = np.ndarray[Any, Any]

HEADER, FORMAT = "wholestep.network", 1


@dataclass(frozen=True)
class RecordedProgram:
    """The program of a network: a graph over its inputs and arrays, and the structure of its outputs."""

    graph: ir.IRGraph
    form: Any  # the name of an output, or a nested list or dict of names
    name: str  # name of the network's class
    origin: str  # where it was imported from, for messages

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as text: nodes refer to each other more deeply than `pickle` can recurse."""
        return _read_program, (print_graph(self.graph), self.form, self.name, self.origin)

    def __deepcopy__(self, _: Any) -> RecordedProgram:
        return self  # immutable, so a copy is not needed


def _read_program(graph: str, form: Any, name: str, origin: str) -> RecordedProgram:
    return RecordedProgram(parse_graph(graph), form, name, origin)


@dataclass(frozen=True)
class Holding:
    """One array of a recorded network."""

    trained: bool
    shape: tuple[int, ...]
    dtype: str
    frozen: bool = False
    fixed: bool = False  # its value is part of the graph: it can be read, but not replaced
    by_columns: bool = False
    same_as: str = ""  # the name under which the same array is stored


class Recorded(Module):
    """A recorded network, returned by `ws.from_torch`, `ws.from_onnx` or `ws.load_network`.

    It is trained, evaluated, frozen, saved and loaded as any module.  Its arrays keep the names of the original.
    """

    def __init__(self, program: RecordedProgram, holdings: Mapping[str, Holding], arrays: Mapping[str, Array]) -> None:
        self._program, self._holdings = program, dict(holdings)
        by_rows = [isinstance(e, Dim) for node in program.graph.inputs for e in (*node.type.shape, None)[:1]]
        names = program.graph.leaves("input")
        self.fixed_batch = not any(by_rows)
        self.fixed_inputs = frozenset(name for name, symbolic in zip(names, by_rows) if not symbolic)
        parameters: dict[str, Parameter] = {}
        for name, holding in holdings.items():
            parameters[name] = parameters[holding.same_as] if holding.same_as else _parameter_of(holding)
            setattr(self, name, parameters[name])
        self._unchecked_load({name: a for name, a in arrays.items() if name in parameters})

    def _unchecked_load(self, arrays: Mapping[str, Array]) -> None:
        if arrays:
            super().load_state_dict(arrays)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The outputs of the recorded graph."""
        program: RecordedProgram = self._program
        values = self._bind(inputs, named)
        into = common_graph(*values.values()) or trace.graph_now()
        assert into is not None, "a module records itself in a graph"
        owned: dict[str, Parameter] = self.__dict__["_owned"]
        states: dict[str, Tensor] = {}
        for name in program.graph.states():
            tensor = trace.tensor_now(self, owned[name])
            assert tensor is not None
            states[name] = tensor
        outputs = replay(program.graph, into, values, states)
        by_name = {o.name: tensor for o, tensor in zip(program.graph.outputs, outputs)}
        return _build_outputs(program.form, by_name)

    def _bind(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Tensor]:
        leaves = self._program.graph.leaves("input")
        values = {**dict(zip(leaves, inputs)), **named}
        if len(inputs) > len(leaves) or values.keys() != leaves.keys() or len(values) < len(inputs) + len(named):
            takes = ", ".join(leaves) or "nothing"
            received = [f"{len(inputs)} without a name"] * bool(inputs) + list(named)
            fail(UsageError, f"{type(self).__name__} takes {takes}; received {', '.join(received) or 'nothing'}.")
        return {name: _as_recorded(name, values[name], node) for name, node in leaves.items()}

    def load_state_dict(
        self, values: Mapping[str, object], strict: bool = True, rename: Rename | None = None
    ) -> LoadReport:
        """Load as every module does; but buffers whose values are part of the graph accept only these values."""
        from wholestep.nn.state.weights import by_name

        fixed = {name for name, holding in self._holdings.items() if holding.fixed}
        if fixed and isinstance(values, Mapping):
            now = self.state_dict()
            for name, value in by_name(values, rename).items():
                if name in fixed and not np.array_equal(
                    np.asarray(value), now[name], equal_nan=now[name].dtype.kind == "f"
                ):
                    fail(
                        InputError,
                        f"{name!r} has other numbers than when the network was imported, and they are part of its "
                        "graph: masks, positions and indices were computed from them. Nothing was loaded. Load them "
                        "where the network comes from, and import it again.",
                    )
        return super().load_state_dict(values, strict, rename)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network, its graph and all its arrays, as one safetensors file; `ws.load_network` reads it."""
        save_arrays(self.state_dict(), path, {**(encoding_metadata(self) or {}), HEADER: self._header()})

    def _header(self) -> str:
        program: RecordedProgram = self._program
        frozen = {name for name, owned in self.all_names() if owned.trained and owned.frozen}
        arrays = {
            name: {
                "trained": h.trained, "frozen": name in frozen, "fixed": h.fixed, "by_columns": h.by_columns,
                "same_as": h.same_as,
            }
            for name, h in self._holdings.items()
        }  # fmt: skip
        return json.dumps(
            {
                "format": FORMAT, "name": program.name, "origin": program.origin, "form": program.form,
                "arrays": arrays, "graph": print_graph(program.graph),
            }
        )  # fmt: skip

    def options(self) -> str:
        elements = sum(owned.elements for owned in self.parameters().values())
        return f"{self._program.origin}, {elements:,} parameters"


def _parameter_of(holding: Holding) -> Parameter:
    if not holding.trained:
        return Buffer(holding.shape, 0.0, holding.dtype)
    parameter = Parameter(holding.shape, 0.0, holding.dtype, by_columns=holding.by_columns)
    parameter.frozen, parameter.optional = holding.frozen, True
    return parameter


def _as_recorded(name: str, value: Any, node: ir.Node) -> Tensor:
    if not isinstance(value, Tensor):
        fail(UsageError, f"the input {name!r} is a tensor of the graph; received {type(value).__name__}.")
    wanted = node.type.dtype
    alike = value.dtype == wanted or (value.dtype.is_float and wanted.is_float)
    if not alike and not (value.dtype.is_integer and wanted.is_integer):
        fail(
            DTypeError,
            f"the network takes {name!r} as {wanted}; received {value.dtype}. Cast it: {name}.astype('{wanted}').",
        )
    return value.astype(wanted)


def _build_outputs(form: Any, outputs: Mapping[str, Tensor]) -> Any:
    if isinstance(form, dict):
        return {key: _build_outputs(part, outputs) for key, part in form.items()}
    if isinstance(form, list | tuple):
        return tuple(_build_outputs(part, outputs) for part in form)
    return outputs[form]


def network_of(program: RecordedProgram, base: type[Recorded] = Recorded) -> type[Recorded]:
    """The class of one recorded network: it has the network's name, and `forward` takes the inputs by name."""
    names = tuple(node.attrs.name for node in program.graph.inputs)  # type: ignore[attr-defined]
    return _network_class(base, program.name, names)


def _network_class(base: type[Recorded], name: str, inputs: tuple[str, ...]) -> type[Recorded]:
    def forward(self: Recorded, *inputs: Any, **named: Any) -> Any:
        return Recorded.forward.__wrapped__(self, *inputs, **named)  # type: ignore[attr-defined]

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(one, kind) for one in ("self", *inputs)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    forward.__doc__ = f"{name}({', '.join(inputs)}), as it was recorded."
    return make_subclass(base, {"forward": forward}, _network_class, base, name, inputs, name=name)


# -- files -------------------------------------------------------------------------------------------------------


def load_network(path: str | PathLike[str]) -> Recorded:
    """Load a network that `save` of an imported network wrote: its graph and its weights.  No other file is needed.

    Example: `net = ws.load_network("net.safetensors")`.
    """
    file = Path(path)
    text, arrays = read_header(file).get(HEADER), read_weights(file)
    if text is None:
        raise CheckpointError(f"{file} holds weights, no network: build its model, then model.load({str(path)!r}).")
    try:
        header = json.loads(text)
        if header["format"] != FORMAT:
            raise CheckpointError(f"{file} is a network of format {header['format']!r}; this version reads {FORMAT}.")
        program = RecordedProgram(
            parse_graph(header["graph"]), header["form"], str(header["name"]), str(header["origin"])
        )
        holdings = dict(_holdings(header["arrays"], arrays))
        _check(program, holdings)
        return network_of(program)(program, holdings, arrays)
    except CheckpointError:
        raise
    except (WholestepError, AssertionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is not a network file of this version, or it is damaged: {type(error).__name__}: {error}. Nothing "
            "was loaded."
        ) from error


def _holdings(said: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, Array]) -> Iterator[tuple[str, Holding]]:
    if said.keys() != arrays.keys():
        differing = sorted(said.keys() ^ arrays.keys())
        raise ValueError(f"its graph and its arrays do not belong together: {', '.join(differing[:5])}")
    for name, h in said.items():
        array = arrays[name]
        flags = {key: bool(h[key]) for key in ("frozen", "fixed", "by_columns")}
        same = str(h["same_as"])
        yield name, Holding(bool(h["trained"]), array.shape, as_dtype(array.dtype).name, same_as=same, **flags)


def _check(program: RecordedProgram, holdings: Mapping[str, Holding]) -> None:
    """Check that the arrays of the file fit the states of the graph, and that every output exists."""
    for name, node in program.graph.states().items():
        h = holdings[name]
        if (h.shape, h.dtype) != (node.type.shape, node.type.dtype.name):
            raise ValueError(f"the graph takes {name!r} as {node.type}; the file holds {h.dtype}{list(h.shape)}")
    _build_outputs(program.form, {o.name: o.node for o in program.graph.outputs})  # type: ignore[misc]

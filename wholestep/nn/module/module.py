"""`Module`: a network as an object.  Users write `forward`; everything else follows from the attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from types import FunctionType
from typing import Any, NoReturn, final

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.precision import half_parameter_error
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail, located
from wholestep.compiler.ir.types import as_dtype
from wholestep.errors import DTypeError, OptionError, UsageError
from wholestep.lazy import interop
from wholestep.nn.module import methods, trace
from wholestep.nn.module.parameter import Parameter, ParametersOf

# Names whose assignment freezes the module or raises an error instead of setting an attribute: see freezing.py.
SPECIAL = frozenset(
    ("trainable", "requires_grad", "training", "stop_training", "dtype", "device", "rate", "activation")
)
# False: parameters assigned later are frozen, and batch norms keep their statistics, as in Keras
TRAINABLE = "_trainable"
SEEN = "_seen_inputs"  # the specs of the inputs of the model's last call
MEANINGS = "_meanings"  # how a loss interprets the model's outputs (as logits, probabilities, ...), by name
COMPILED = (
    "_predictors",
    "_evaluators",
    "_gradients",
    "_activations",
    "_generators",
)  # attributes that hold compiled sessions, which live as long as the model


class Module:
    """A network or a part of one.

    Assign parameters (`ws.nn.Parameter`), buffers and other modules to attributes (lists and dicts of modules too),
    and write `forward`.  Names follow from the attributes, as in PyTorch: `blocks.0.norm.weight`.  Called on tensors a
    module records itself in their graph; called on arrays it runs `predict`.

    Example::

        class Block(ws.nn.Module):
            def __init__(self, width):
                self.norm, self.up = ws.nn.LayerNorm(width), ws.nn.Linear(width, width)
            def forward(self, x):
                return x + self.up(self.norm(x))
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, function in list(vars(cls).items()):
            if isinstance(function, FunctionType) and not name.startswith("_") and not hasattr(Module, name):
                setattr(cls, name, trace.recorded_method(function))
        if isinstance(forward := vars(cls).get("forward"), FunctionType):
            cls.forward = trace.forward_of_arrays_too(forward)  # type: ignore[method-assign]

    fixed_batch = False  # does it accept only one batch size?
    fixed_inputs: frozenset[str] = frozenset()  # inputs whose first axis is not the batch: edges of a graph, a table
    products_in_float32 = False  # see nn.in_float32
    weight_regularizer: Any = None  # the regularizer of the weights of the module and its submodules
    activity_regularizer: Any = None  # the regularizer of its output: see nn/module/regularizers.py
    unused_names: tuple[str, ...] = ()  # arrays in other libraries' files that this module does not use

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The output of the module as a function of tensors.  Users define it, and call the module itself."""
        fail(UsageError, f"{type(self).__name__} has no forward: define `def forward(self, x)` in the class.")

    @final
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Record the module on tensors; on arrays, run `predict`."""
        tensors = [a for a in _leaves((*inputs, *named.values())) if isinstance(a, Tensor)]
        graph = common_graph(*tensors)
        if graph is None and tensors:
            graph = trace.graph_now()  # the graph of tensors that were created without inputs: ws.arange(n)
        if graph is None:
            if not tensors:
                from wholestep.nn.module.predictions import remember_outputs

                return remember_outputs(self, inputs, named, self.predict(*inputs, **named))
            fail(UsageError, f"{type(self).__name__} was called on tensors of no graph; record an input: g.input(...).")
        here = trace.trace_of(graph)
        here.open(self)
        with trace.run_module(here, self):
            output = self.forward(*inputs, **named)
        if self.weight_regularizer is not None or self.activity_regularizer is not None:
            from wholestep.nn.module.regularizers import record

            record(here, self, output)
        trace.notify_watcher(here, self, (*inputs, *named.values()), output)
        return output

    # -- attributes ----------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: object) -> None:
        if name in SPECIAL:
            from wholestep.nn.module.freezing import assign

            if assign(self, name, value):
                return
        owned = self.__dict__.setdefault("_owned", {})
        if not self.__dict__.get(TRAINABLE, True):
            from wholestep.nn.module.freezing import freeze_assigned

            freeze_assigned(value)
        if isinstance(value, Parameter):
            self.__dict__.pop(name, None)
            owned[name] = value
        elif name in owned and value is not None:
            _refuse_assignment(type(self).__name__, name, owned[name], value)
        else:
            owned.pop(name, None)
            self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        owned = self.__dict__.get("_owned", {}).get(name)
        if owned is not None:
            tensor = trace.tensor_now(self, owned)
            return owned if tensor is None else tensor
        return interop.foreign_attribute("a module", self, name, type(self).__name__)

    def __delattr__(self, name: str) -> None:
        if self.__dict__.get("_owned", {}).pop(name, None) is None:
            super().__delattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        """The state for `copy.deepcopy`: with the weights, initialized or not, but without compiled sessions."""
        from wholestep.nn.derived import prepare_copy  # imported here because few modules are copied

        prepare_copy(self)
        return {name: value for name, value in self.__dict__.items() if name not in COMPILED}

    def children(self) -> dict[str, Module]:
        """The modules in attributes by name; modules in lists, tuples and dicts are called `name.0`, `name.key`."""
        return {path: module for name, value in vars(self).items() for path, module in _modules_in(name, value)}

    # -- what it holds -------------------------------------------------------------------------------------------

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """The module itself as "", then all its submodules by path."""
        yield "", self
        for name, child in self.children().items():
            for path, module in child.named_modules():
                yield (f"{name}.{path}" if path else name), module

    def all_names(self) -> Iterator[tuple[str, Parameter]]:
        """The names of all parameters and buffers; a tied array has several names."""
        for path, module in self.named_modules():
            for name, owned in module.__dict__.get("_owned", {}).items():
                yield (f"{path}.{name}" if path else name), owned

    def named_arrays(self) -> dict[str, Parameter]:
        """Parameters and buffers, each under its first name."""
        names = {owned: name for name, owned in reversed(list(self.all_names()))}
        return {name: owned for name, owned in self.all_names() if names[owned] == name}

    def parameters(self) -> ParametersOf:
        """The parameters by name, including frozen ones."""
        return ParametersOf(self, {name: owned for name, owned in self.named_arrays().items() if owned.trained})

    def traced(self, graph: Graph) -> dict[str, Tensor]:
        """The parameters that are not frozen, by name, as tensors of a graph that uses them.

        Example: `ws.Adam().update(g, model.traced(g), ws.gradients(loss, model.traced(g)))`.
        """
        tensors = trace.trace_of(graph).tensors
        arrays = self.named_arrays()
        if arrays and not any(owned in tensors for owned in arrays.values()):
            fail(
                UsageError,
                f"this {type(self).__name__} was not called in the graph, nor was any part of it, so it has no "
                "tensors there. Call it first.",
            )
        used = {name: owned for name, owned in self.parameters().items() if owned in tensors}
        return {name: tensors[owned] for name, owned in used.items() if not owned.frozen}

    def apply(self, function: Callable[[Module], object]) -> Module:
        """Call a function on every module, children first.  Example: `model.apply(lambda m: print(m))`."""
        for child in self.children().values():
            child.apply(function)
        function(self)
        return self

    def astype(self, dtype: object) -> Module:
        """Set the dtype of the module, float32 or float64; only before its weights are initialized.

        For half precision, leave the model unchanged and pass `precision="bfloat16"` to `ws.fit` or `ws.build_session`.
        """
        with located():
            wanted = as_dtype(dtype)
        if not wanted.is_float:
            fail(DTypeError, f"a model computes in a float dtype; received {wanted}.")
        if wanted.is_half:
            fail(DTypeError, half_parameter_error(f"model.astype({wanted.name!r})"))
        from wholestep.steps.states import has_numbers

        if has_numbers(self):
            fail(UsageError, "astype: the model has numbers already; say the dtype before it is built or loaded.")
        for owned in self.named_arrays().values():
            if owned.dtype.is_float:
                owned.astype(wanted)
        return self

    # -- freezing ------------------------------------------------------------------------------------------------

    @property
    def trainable(self) -> bool:
        """Is the module trained?  Assigning it freezes or unfreezes all its parameters for sessions that are built
        later.

        Batch norms of a module that is not trainable use their running statistics and keep them, as in Keras.
        """
        from wholestep.nn.module.freezing import is_trainable

        return is_trainable(self)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        from wholestep.nn.module.freezing import set_trainable

        set_trainable(self, value)

    def freeze(self, *patterns: str) -> Module:
        """Freeze the parameters whose names match, for sessions that are built later.

        Buffers are not parameters: a `BatchNorm2d` whose weights are frozen still uses the statistics of the batch in
        steps that train and moves its running statistics, as PyTorch's does in `train` mode.

        Example: `model.freeze("embedding.*")`.
        """
        return self._set_frozen(patterns, True)

    def unfreeze(self, *patterns: str) -> Module:
        """Undo `freeze` for the names that match."""
        return self._set_frozen(patterns, False)

    def _set_frozen(self, patterns: tuple[str, ...], frozen: bool) -> Module:
        names = self.parameters()
        for pattern in patterns:
            matching = [owned for name, owned in names.items() if fnmatchcase(name, pattern)]
            if not matching:
                listed = ", ".join(names) or "there are none"
                fail(OptionError, f"{pattern!r} matches none of the parameters: {listed}.")
            for owned in matching:
                owned.frozen = frozen
        return self

    # -- numbers: methods.py ----------------------------------------------------------------------------------

    predict = methods.predict
    predict_classes = methods.predict_classes
    activations = methods.activations
    evaluate = methods.evaluate
    state_dict = methods.state_dict
    load_state_dict = methods.load_state_dict
    save = methods.save
    load = methods.load
    summary = methods.summary

    # -- printing ------------------------------------------------------------------------------------------------

    def options(self) -> str:
        """The arguments that `repr` shows in brackets; a module without children returns its sizes."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.children().items()]
        inside = "\n  ".join(["", *lines]) + "\n" if lines else self.options()
        return f"{type(self).__name__}({inside})"

    __hash__ = object.__hash__


def _modules_in(name: str, value: object) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _modules_in(f"{name}.{key}", item)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts, such as the state of a recurrent layer, which is a pair."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _leaves(value)
        elif isinstance(value, dict):
            yield from _leaves(value.values())
        else:
            yield value


def _refuse_assignment(kind: str, name: str, owned: Parameter, value: object) -> NoReturn:
    what = type(owned).__name__.lower()
    if isinstance(value, Tensor):
        fix = f"To change it step by step write x.graph.update(self.{name}, value), x a tensor"
    else:
        fix = f"To set its numbers write load_state_dict({{{name!r}: array}}, strict=False)"
    fail(
        UsageError,
        f"{kind}.{name} is a {what}, {owned.type}, and {type(value).__name__} was assigned to it, which would remove "
        f"it. {fix}; to replace it assign a ws.nn.{type(owned).__name__}(shape, init=array), to remove it None.",
    )

"""Methods of PyTorch's modules, for our modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import HabitError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module
    from wholestep.nn.module.parameter import Parameter


def named_parameters(module: Module, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
    """Names and parameters, as `module.parameters().items()`"""
    for name, owned in module.parameters().items():
        if recurse or "." not in name:
            yield (f"{prefix}.{name}" if prefix else name), owned


def named_buffers(module: Module) -> Iterator[tuple[str, Parameter]]:
    """Names and arrays that are not trained."""
    return ((name, owned) for name, owned in module.named_arrays().items() if not owned.trained)


def buffers(module: Module) -> Iterator[Parameter]:
    """The arrays that are not trained."""
    return (owned for _, owned in named_buffers(module))


def named_children(module: Module) -> Iterator[tuple[str, Module]]:
    """Names and modules, as `module.children().items()`"""
    yield from module.children().items()


def modules(module: Module) -> Iterator[Module]:
    """The module itself and all its submodules."""
    return (part for _, part in module.named_modules())


def get_submodule(module: Module, target: str) -> Module:
    """The submodule at a path of names."""
    modules_by_path = dict(module.named_modules())
    if target not in modules_by_path:
        paths = ", ".join(filter(None, modules_by_path))
        fail(UnknownNameError, f"{type(module).__name__} has no module {target!r}; it has: {paths}.")
    return modules_by_path[target]


def get_layer(module: Module, name: str | None = None, index: int | None = None) -> Module:
    """Keras' method: the layer with a name, or the one at an index of `model.children()`."""
    layers = module.children()
    if index is not None:
        if not -len(layers) <= index < len(layers):
            fail(UnknownNameError, f"{type(module).__name__} has {len(layers)} layers; received index={index}.")
        return list(layers.values())[index]
    return get_submodule(module, str(name))


def get_parameter(module: Module, target: str) -> Parameter:
    """The parameter with a name."""
    parameters = module.parameters()
    if target not in parameters:
        fail(UnknownNameError, f"{type(module).__name__} has no parameter {target!r}; it has: {', '.join(parameters)}.")
    return parameters[target]


def requires_grad_(module: Module, requires_grad: bool = True) -> Module:
    """`module.unfreeze("*")`, or `module.freeze("*")`"""
    for owned in module.parameters().values():
        owned.frozen = not requires_grad
    return module


def double(module: Module) -> Module:
    """`module.astype("float64")`"""
    return module.astype("float64")


def to_float(module: Module) -> Module:
    """`module.astype("float32")`"""
    return module.astype("float32")


def to(module: Module, *targets: Any, dtype: object = None, device: object = None) -> Module:
    """The module with another float dtype; the device is chosen for each session."""
    from wholestep.compiler.ir.types import as_dtype
    from wholestep.errors import WholestepError

    for value in (*targets, device):
        if value is not None and str(value) != "cpu":
            try:
                dtype = as_dtype(value)
            except WholestepError:
                fail(
                    HabitError,
                    f"a module has no device to go `to`: {value!r}; the device belongs to the run: ws.fit(..., "
                    f"device={str(value)!r}), also of ws.build_session, predict and evaluate. For another dtype write "
                    "model.astype('float64').",
                )
    return module if dtype is None else module.astype(dtype)


def cpu(module: Module) -> Module:
    """The module itself, whose weights are always in host memory."""
    return module


def register_buffer(module: Module, name: str, tensor: Any, persistent: bool = True) -> None:
    """`self.name = ws.nn.Buffer(array.shape, init=array)`"""
    from wholestep.nn.module.parameter import Buffer

    if tensor is None:
        setattr(module, name, None)
        return
    if isinstance(tensor, Tensor):
        fail(
            UsageError,
            f"register_buffer: {name!r} is a tensor of a program, and a buffer holds numbers. Make them with NumPy, "
            f"e.g. np.tril(np.ones((4, 4))), or write the expression in forward.",
        )
    array = np.asarray(tensor)
    setattr(module, name, Buffer(array.shape, array, array.dtype.name if array.dtype != np.float64 else "float32"))


def register_parameter(module: Module, name: str, param: Any) -> None:
    """`self.name = parameter`"""
    setattr(module, name, param)


def add_module(module: Module, name: str, child: Any) -> None:
    """`self.name = child`"""
    setattr(module, name, child)

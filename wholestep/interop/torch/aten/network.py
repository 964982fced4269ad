"""`ws.from_torch`: convert a PyTorch module to a module of Wholestep."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UnsupportedOpError, UsageError, WholestepError
from wholestep.nn.module.graph_module import Recorded, network_of

if TYPE_CHECKING:
    from wholestep.interop.torch.aten.coverage import Coverage


class TorchNetwork(Recorded):
    """A network that was imported from PyTorch; see `ws.from_torch`."""

    def to_torch(self, module: Any = None) -> Any:
        """The imported torch module with the current weights of this network.

        Args:
            module: a module of the same architecture that gets the weights; by default the imported one.

        Example: `torch.save(net.to_torch().state_dict(), "model.pt")`.
        """
        _need_torch()
        from wholestep.interop.torch.aten.weights import give_back

        target = self.__dict__.get("_module") if module is None else module
        if target is None:
            fail(UsageError, "this network was read from a file or a pickle, without its module: say to_torch(module).")
        return give_back(target, self)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the torch module, whose class may not be picklable."""
        return {name: value for name, value in super().__getstate__().items() if name != "_module"}

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchNetwork:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        module = {"_module": self.__dict__["_module"]} if "_module" in self.__dict__ else {}
        copied.__dict__.update(copy.deepcopy({**self.__getstate__(), **module}, memo))
        return copied


def from_torch(
    module: Any,
    example: Any,
    *,
    batch: str | None = "batch",
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    mode: str = "both",
) -> TorchNetwork:
    """Convert a `torch.nn.Module` to a module of Wholestep with the same names and weights: train it with `ws.fit`.

    `torch.export` gives its ATen ops, in training and in evaluation, and each is recorded as what it is here.  Steps
    that train do what the module does in training mode, `predict` and `evaluate` what it does in `eval()`; parts that
    are in `eval()` inside a module in training stay so.  Buffers that a call changes change; what depends on no input
    is computed once.  Torch is needed to import, not to train, save or load.

    Weight decay of this library's optimizers leaves out parameters of one axis, as most recipes do; torch's decays
    all: `ws.AdamW(decay_on=("*",))` is torch's.

    Args:
        example: the module's inputs: an array or tensor, a tuple of them, or a dict by the names of the
            arguments.  Its numbers do not matter, its sizes do.
        batch: the name of the dimension that all inputs begin with and that may have any size; None fixes it.
        dynamic: other dimensions of any size, by input and axis: `{"tokens": {1: "time"}}`.
        mode: "both", or "train" or "eval" for a module that can be exported in one mode alone; it then does the same
            everywhere.

    Raises:
        UnsupportedOpError: names every op that has no row here, its module and line; see `ws.torch_op`.

    Example::

        net = ws.from_torch(torchvision.models.resnet18(num_classes=10), images[:1])
        ws.fit(net, (images, labels), loss="cross_entropy", epochs=3)
        net.to_torch()
    """
    _need_torch()
    from wholestep.interop.torch.aten.assemble import assemble_program
    from wholestep.interop.torch.aten.examples import example_call

    if mode not in ("both", "train", "eval"):
        fail(UsageError, f"from_torch: mode is 'both', 'train' or 'eval'; received {mode!r}.")
    _need_module(module)
    with _wrap_errors(module):
        call = example_call(module, example, batch, dynamic)
        program, holdings, numbers = assemble_program(module, call, ("train", "eval") if mode == "both" else (mode,))
        network = network_of(program, TorchNetwork)(program, holdings, numbers)
    assert isinstance(network, TorchNetwork)
    network.__dict__["_module"] = module
    return network


@contextmanager
def _wrap_errors(module: Any) -> Iterator[None]:
    """Convert unexpected errors to errors of this library, which name the module and have the original as cause."""
    try:
        yield
    # a warning is caught here if the user's filters turn warnings into errors
    except (WholestepError, MemoryError, TimeoutError, Warning):
        raise
    except Exception as error:
        fail(
            UnsupportedOpError,
            f"{type(module).__name__} cannot be imported: {type(error).__name__}: {error}. That is a mistake of "
            "ws.from_torch, not of the module; what led to it stands above. Import a part of the module to find which "
            "one is to be written otherwise.",
        )


def torch_coverage(module: Any, example: Any, *, batch: str | None = "batch", mode: str = "train") -> Coverage:
    """The ATen ops of a module, and its unsupported ops; nothing is recorded.

    Example: `print(ws.torch_coverage(model, images[:1]))`.
    """
    _need_torch()
    from wholestep.interop.torch.aten.coverage import coverage_of
    from wholestep.interop.torch.aten.examples import example_call
    from wholestep.interop.torch.aten.export import export

    _need_module(module)
    with _wrap_errors(module):
        return coverage_of(export(module, example_call(module, example, batch, None), mode))


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        fail(
            UsageError,
            "networks of PyTorch are imported with PyTorch, which is not installed here: pip install torch. A network "
            "that was imported and saved is read without it: ws.load_network(path).",
        )


def _need_module(module: Any) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        fail(UsageError, f"from_torch takes a torch.nn.Module and an example of its inputs; received {module!r}.")
    lazy = next((name for name, p in module.named_parameters() if torch.nn.parameter.is_lazy(p)), None)
    if lazy is not None:
        fail(
            UsageError,
            f"{type(module).__name__} has the parameter {lazy!r}, which has no shape before the first call: call the "
            "module once, then import it.",
        )

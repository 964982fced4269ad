"""Resolves `device=` to a backend that runs plans and the target that they are compiled for.

cpu                this machine's CPU, with the best target that it supports
cpu/portable       the CPU with this target
cuda               the first GPU; cuda:1 is the second one
cuda/sm_80         the first GPU with this target
reference          the backend that runs plans in NumPy, with its own target
null               plans and reports for this machine's CPU, but runs nothing
null:cuda/sm_90    the same for a target that this machine need not have
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, cast

from wholestep.compiler.backend import Device
from wholestep.compiler.target import FAMILIES, Target, targets_of
from wholestep.errors import OptionError
from wholestep.records import dataclass


class BackendModule(Protocol):
    """The interface of a backend's module."""

    def default_target(self) -> Target:
        """The target of `device=` with the backend's name alone."""

    def make_device(self, target: Target) -> Device:
        """The device with a target; OptionError if it cannot run on this machine."""


class NumberedModule(BackendModule, Protocol):
    """The interface of a backend with numbered devices."""

    def numbered_target(self, number: int) -> Target:
        """The target of the device that has this number."""

    def make_numbered(self, target: Target, number: int) -> Device:
        """The device that has this number, for a target."""


# Name -> the module, imported on first use.
BACKENDS: dict[str, str | BackendModule] = {
    "cpu": "wholestep.compiler.backends.cpu.runtime.device",
    "cuda": "wholestep.compiler.backends.cuda.runtime.device",
    "reference": "wholestep.compiler.backends.reference.program",
    "null": "wholestep.compiler.backends.null",
}
ANY_TARGET = ("null",)  # backends that accept a target of any family after a colon
NUMBERED = ("cuda",)  # backends that accept a device number after a colon


@dataclass(frozen=True)
class Registered:
    """A backend that a user registered."""

    target: Target
    make: Callable[[Target], Device]

    def default_target(self) -> Target:
        return self.target

    def make_device(self, target: Target) -> Device:
        return self.make(target)


def register(name: str, target: Target, make_device: Callable[[Target], Device]) -> None:
    """Register an external backend as `device=name`: plans are compiled for `target`, and its device runs them."""
    if not name.isidentifier() or name in BACKENDS:
        raise OptionError(f"the name of a backend must be an unused identifier; received {name!r}.")
    BACKENDS[name], FAMILIES[name] = Registered(target, make_device), {target.name: target}


def unregister(name: str) -> None:
    """Undo `register`."""
    if not isinstance(BACKENDS.get(name), Registered):
        registered = [n for n, backend in BACKENDS.items() if isinstance(backend, Registered)]
        raise OptionError(f"{name!r} is not a registered backend; registered: {', '.join(registered) or 'none'}.")
    del BACKENDS[name], FAMILIES[name]


def device_named(name: str, precision: str = "") -> Device:
    """The device of `device=name`; a `precision` that is a variant of its target (tf32) selects that variant."""
    backend, target = _read(name)
    module = _backend(backend)
    if isinstance(target, int):
        numbered = cast(NumberedModule, module)
        return numbered.make_numbered(_in_precision(numbered.numbered_target(target), precision, name), target)
    return module.make_device(_in_precision(module.default_target() if target is None else target, precision, name))


def has_variant(target: Target, precision: str) -> bool:
    """Does a target, which is not itself a variant, have a variant for this precision?"""
    targets = FAMILIES.get(target.family, {})
    return f"{target.name}+{precision}" in (targets_of(target.family) if isinstance(targets, str) else targets)


def _in_precision(target: Target, precision: str, device: str) -> Target:
    if not precision or target.name.endswith(f"+{precision}"):
        return target
    variant = targets_of(target.family)[f"{target.name}+{precision}"] if has_variant(target, precision) else None
    if variant is None:
        raise OptionError(
            f"precision={precision!r} is for products on an NVIDIA GPU; device={device!r} has no such products. Leave "
            "precision= out, or train with device='cuda'."
        )
    return variant


def target_named(name: str) -> Target:
    """The target for which `device=name` plans; this machine need not have the device."""
    backend, target = _read(name)
    if isinstance(target, int):
        return cast(NumberedModule, _backend(backend)).numbered_target(target)
    return _backend(backend).default_target() if target is None else target


def device_text(device: object) -> object:
    """The device as a string, also for `torch.device("cuda:0")`; any other value unchanged."""
    is_torchs = type(device).__module__ == "torch" and type(device).__name__ == "device"
    return str(device) if is_torchs else device


def _read(name: object) -> tuple[str, Target | int | None]:
    """The backend's name, and the target or the device number if one is given."""
    name = device_text(name)
    if not isinstance(name, str):
        raise OptionError(f"device={name!r}: expected {known_devices()}.")
    backend, colon, target = name.partition(":")
    if colon:
        if backend in NUMBERED and target.isdecimal():
            return backend, int(target)
        if backend in NUMBERED:
            raise OptionError(f"device={name!r}: a number comes after the colon, e.g. '{backend}:0'.")
        if backend not in ANY_TARGET:
            raise OptionError(f"device={name!r}: only {', '.join(ANY_TARGET)} takes a target after a colon.")
        return backend, _target(name, target)
    family, slash, _ = name.partition("/")
    if name in BACKENDS:
        return name, None
    if not slash and family in FAMILIES:
        raise OptionError(_no_backend(name, family))
    if not slash:
        raise OptionError(f"device={name!r}: expected {known_devices()}.")
    target_record = _target(name, name)
    if family not in BACKENDS:
        raise OptionError(_no_backend(name, family))
    return family, target_record


def _target(device: str, name: str) -> Target:
    family = name.partition("/")[0]
    if family in FAMILIES:
        targets = targets_of(family)
        if name in targets:
            return targets[name]
        raise OptionError(f"device={device!r}: there is no target {name!r}; there are: {', '.join(targets)}.")
    available = ", ".join(n for f in FAMILIES for n in targets_of(f))
    raise OptionError(f"device={device!r}: there is no target {name!r}; there are: {available}.")


def _no_backend(device: str, family: str) -> str:
    example = device if device in targets_of(family) else next(iter(targets_of(family)))
    return (
        f"device={device!r}: nothing in this version of Wholestep runs {family!r}; it only plans for it, with "
        f"device='null:{example}'. Train with device='cpu'."
    )


def known_devices() -> str:
    """The valid values of `device=`, as text for errors."""
    names = [repr(name) for name in BACKENDS]
    cpus = ", ".join(map(repr, targets_of("cpu")))
    plans = ", ".join(repr(f"null:{name}") for family in FAMILIES if family != "cpu" for name in targets_of(family))
    return f"one of {', '.join(names)}; a CPU as one target, {cpus}; or, to plan without running, {plans}"


def _backend(name: str) -> BackendModule:
    entry = BACKENDS[name]
    return cast(BackendModule, importlib.import_module(entry)) if isinstance(entry, str) else entry

"""Wholestep: a whole training step - forward, loss, backward, update - compiled as one graph into one native call."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Where each public name lives.  Names are imported when first used, so that `import wholestep` stays quick.
_MODULES = {
    "wholestep.compiler.frontend.graph": ("Graph",),
    "wholestep.compiler.frontend.tensor": ("Tensor",),
    "wholestep.compiler.frontend.step": ("Spec", "Step", "step"),
    "wholestep.compiler.frontend.functions": (
        "matmul", "ratio", "where", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "sqrt", "recip",
        "erf", "floor", "abs", "sign", "maximum", "minimum", "mod", "less_than", "relu", "sigmoid", "tanh", "gelu",
        "silu", "softmax", "log_softmax", "layer_norm", "concat", "stack", "pad", "gather", "take", "scatter_add",
        "one_hot", "stop_gradient", "random_uniform", "random_normal", "arange", "iota", "size",
    ),
    "wholestep.compiler.ir.types": ("Dim", "float32", "float64", "int32", "int64", "uint8"),
    "wholestep.compiler.frontend.gradients": ("gradients",),
    "wholestep.optim": ("SGD", "Adam", "AdamW", "Optimizer", "runtime"),
    "wholestep.session": (
        "Session", "StepResult", "build_session", "build_session_with_report", "build_session_unoptimized",
        "build_session_cached", "build_inference_session", "compile_training_graph", "save_plan", "load_plan",
    ),
    "wholestep.options": ("CompileOptions",),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = {
    "losses": "wholestep.losses",
    "optim": "wholestep.optim",
    "datasets": "wholestep.datasets",
    "errors": "wholestep.errors",
    "init": "wholestep.compiler.frontend.initializers",
}

__all__ = ["__version__", *_HOMES, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(_SUBMODULES[name])
    else:
        raise AttributeError(f"wholestep has no attribute {name!r}")
    globals()[name] = value  # found once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Options for tests in which torch or scikit-learn is the oracle: most of their time is the C compiler's."""

from __future__ import annotations

import functools
import shlex

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler
from wholestep.errors import CompilerError


def _command() -> tuple[str, ...]:
    try:
        return find_compiler().command
    except CompilerError:  # quick runs need none; of others, sessions report it
        return ("gcc",)


# All warnings are errors, but for what is so on purpose: comparisons of macros for all integer types are constant for
# some, kernels have one signature, and fields that a call leaves out are zero.
ON_PURPOSE = ("-Wno-type-limits", "-Wno-unused-parameter", "-Wno-missing-field-initializers")
WARNINGS = ("-Wall", "-Wextra", *ON_PURPOSE, "-Werror")
# The bits are the same as with -O3: neither level changes the order of a sum.  gcc takes a quarter of the time.
QUICK = shlex.join([*_command(), "-Og"])


@functools.cache
def quick() -> ws.CompileOptions:
    """Compiled fast, unchecked."""
    return ws.CompileOptions(verify=False, compiler=QUICK)


def judged_by_an_oracle(dtype: str) -> ws.CompileOptions:
    """Unchecked; float32, what people train in, with the flags of everybody's sessions."""
    return ws.CompileOptions(verify=False) if dtype == "float32" else quick()

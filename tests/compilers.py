"""Options for tests in which torch or scikit-learn is the oracle: most of their time is the C compiler's."""

from __future__ import annotations

import functools
import shlex

import wholestep as ws
from wholestep.compiler.backends.cpu.compiler import find_compiler


@functools.cache
def quick() -> ws.CompileOptions:
    """At -O1, unchecked.  The bits are those of -O3: neither changes the order of a sum."""
    return ws.CompileOptions(verify=False, compiler=shlex.join([*find_compiler().command, "-O1"]))


def judged_by_an_oracle(dtype: str) -> ws.CompileOptions:
    """Unchecked; float32, what people train in, with the flags of everybody's sessions."""
    return ws.CompileOptions(verify=False) if dtype == "float32" else quick()

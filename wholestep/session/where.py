"""From the arguments of `build_session` to the record of where a session runs."""

from __future__ import annotations

from wholestep.compiler.backend import Where
from wholestep.compiler.devices import device_named
from wholestep.compiler.frontend.precision import TF32
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
from wholestep.errors import OptionError
from wholestep.options import CompileOptions, thread_count


def where_to(
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    options: CompileOptions | None = None,
    precision: object = "float32",
) -> Where:
    """What the arguments of `build_session` mean; an OptionError says which one means nothing."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise OptionError(f"seed={seed!r}: expected a whole number from 0 to 2**64 - 1.")
    count = thread_count(threads, default_threads(), MAX_THREADS)
    found = device_named(device, TF32 if precision == TF32 else "")
    return Where(found, count, seed, options or CompileOptions())

"""Where states are for the CPU: in this process, matrices in panels."""

from __future__ import annotations

from wholestep.compiler.backends.cpu.layout import is_turned, state_layout
from wholestep.compiler.runtime.storage import HostMemory

MEMORY = HostMemory("cpu", state_layout, is_turned)

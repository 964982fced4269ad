"""The import path of version 0.1 for external backends; `common/numpy_program.py` defines these names."""

from wholestep.compiler.backends.common.numpy_program import HostDevice as HostDevice
from wholestep.compiler.backends.common.numpy_program import HostProgram as HostProgram
from wholestep.compiler.backends.common.numpy_program import LaunchMemory as Memory

__all__ = ["HostDevice", "HostProgram", "Memory"]

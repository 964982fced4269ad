"""Functions of the operating system that Python's library lacks: one module per system, with the same functions.

    cores()                      physical cores that this process may run on
    processor_features()         instruction sets, by Linux's names; processor_name() is the name for reports
    physical_bytes()             memory of the machine; available_bytes() is what is free now
    memory_limit()               of the process's container, or None
    map_memory(size)             private zeroed pages
    lock_file(descriptor)        exclusive until closed, or OSError if another process has it; unlock_file
    lock_folder(path)            the same for a folder: a descriptor to close
    is_own(status)               does a file belong to this user?
    is_open_to_others(status)    can others write to it?
    sync_folder(path)            wait until the entries of a folder are on the disk
    ending_signals()             the signals by which a user or the system ends a process
    lower_priority()             lowers the priority of the calling thread
    after_fork(function)         calls a function in forked children
    load_code(path)              loads a shared object, once per process

The native runtime's counterpart is `compiler/backends/cpu/native/platform.h`.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from wholestep.platforms import windows as system
elif sys.platform == "darwin":
    from wholestep.platforms import macos as system
else:
    from wholestep.platforms import linux as system

cores = system.cores
processor_features = system.processor_features
processor_name = system.processor_name
physical_bytes = system.physical_bytes
available_bytes = system.available_bytes
memory_limit = system.memory_limit
map_memory = system.map_memory
lock_file = system.lock_file
unlock_file = system.unlock_file
lock_folder = system.lock_folder
is_own = system.is_own
is_open_to_others = system.is_open_to_others
sync_folder = system.sync_folder
ending_signals = system.ending_signals
lower_priority = system.lower_priority
after_fork = system.after_fork
load_code = system.load_code

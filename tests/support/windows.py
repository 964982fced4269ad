"""A stand-in for Windows: importing this module removes from the process what Python lacks there.

The modules and functions of POSIX are gone, `wholestep.platforms` is that of Windows over a small imitation of its
kernel and C library, and text files without a named encoding are errors, because they are not UTF-8 there.  Paths,
processes and the C compiler remain those of this machine.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import mmap
import os
import pkgutil
import signal
import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

# Modules of the standard library that use POSIX as soon as they are imported.
for name in ("asyncio", "concurrent.futures", "filelock", "multiprocessing", "numpy", "platform", "selectors", "shutil",
             "socket", "ssl", "subprocess", "tempfile", "typer", "uuid"):  # fmt: skip
    importlib.import_module(name)

MISSING: dict[ModuleType, tuple[str, ...]] = {
    signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGPIPE", "SIGALRM", "pthread_sigmask"),
    os: (
        "chown", "fchmod", "fork", "geteuid", "getpgid", "getpriority", "getuid", "killpg", "memfd_create", "mkfifo",
        "pread", "preadv", "pwrite", "pwritev", "register_at_fork", "sched_getaffinity", "sched_setaffinity",
        "setpriority", "setsid", "sysconf", "uname", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW",
        "posix_fadvise", "posix_fallocate",
    ),
    mmap: ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_SHARED"),
}  # fmt: skip
MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
GIB = 1 << 30


class Kernel32:
    """A processor with AVX2, and 8 GiB of memory."""

    @staticmethod
    def IsProcessorFeaturePresent(number: int) -> bool:
        return number == 40

    @staticmethod
    def GlobalMemoryStatusEx(status: Any) -> bool:
        status._obj.physical, status._obj.available = 8 * GIB, 4 * GIB
        return True

    @staticmethod
    def GetCurrentThread() -> int:
        return 0

    @staticmethod
    def SetThreadPriority(thread: int, priority: int) -> bool:
        return thread == 0 and priority < 0


def locking(descriptor: int, mode: int, count: int) -> None:
    """The lock of the C library; a region of another process is EACCES, as there."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if mode else fcntl.LOCK_UN)
    except OSError as error:
        raise OSError(errno.EACCES, "Permission denied") from error


msvcrt: Any = ModuleType("msvcrt")
msvcrt.locking = locking
sys.modules["msvcrt"] = msvcrt
ctypes.windll = SimpleNamespace(kernel32=Kernel32)
signal.SIGBREAK = signal.SIGUSR1
for module, names in MISSING.items():
    for name in names:
        delattr(module, name)
for name in MODULES:
    sys.modules[name] = None  # type: ignore[assignment]  # an import raises
warnings.filterwarnings("error", category=EncodingWarning, module="wholestep")

before, sys.platform = sys.platform, "win32"
importlib.import_module("wholestep.platforms")
sys.platform = before

# Ranks that are processes and NVIDIA's libraries need Linux; the rest is for other frameworks.
OTHERS = ("backends.cuda", "ray_backend", "platforms.linux", "platforms.macos", "platforms.posix", "__main__",
          "wholestep.interop", "wholestep.sklearn", "transport.mpi", "transport.nccl_group")  # fmt: skip


def import_everything() -> dict[str, str]:
    """Import every module that one process may need; the errors by module."""
    package, failed = importlib.import_module("wholestep"), {}
    for found in pkgutil.walk_packages(package.__path__, "wholestep.", onerror=lambda name: None):
        if not any(part in found.name for part in OTHERS):
            try:
                importlib.import_module(found.name)
            except (ImportError, AttributeError, TypeError, EncodingWarning) as error:
                failed[found.name] = f"{type(error).__name__}: {error}"
    return failed

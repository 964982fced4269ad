"""Compile options and launch variables: the only module that reads environment variables."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from wholestep.errors import OptionError

EXACTNESS = ("bitwise", "reassociating", "approximate")


@dataclass(frozen=True)
class CompileOptions:
    """Options of a build; two builds with equal options, graphs and targets give equal plans.

    >>> CompileOptions(fuse=False).changes()
    {'fuse': False}
    """

    cache: bool = True  # keep plans and compiled code for the next process
    cache_dir: str | None = None  # None: $WHOLESTEP_CACHE_DIR, else the user's cache folder
    compiler: str | None = (
        None  # a C compiler: a name, a path, a command line ("gcc -O1").  None: $CC, else what is found
    )
    optimize: bool = True  # run the whole-graph optimiser after autodiff
    egraph: bool = True  # let the e-graph choose among equivalent programs, before autodiff and on the whole step
    exactness: str = "reassociating"  # rewrites to use: "bitwise", "reassociating" or "approximate"
    egraph_rounds: int = 16  # rounds of the e-graph's rules; the best program after them is used
    egraph_nodes: int = 60_000  # a larger program is not rewritten; growing rules are disabled long before
    egraph_seconds: float = 60.0  # time limit of each stage; a program that takes longer is not rewritten
    fuse: bool = True  # let several nodes share a kernel
    check_passes: bool = True  # check the graph before and after every pass
    # Run a new plan once on random numbers against the interpreter: True: at small sizes and at capacity; None: at
    # capacity only if that is estimated below 50 ms; False: never.
    verify: bool | None = None

    def __post_init__(self) -> None:
        if self.exactness not in EXACTNESS:
            raise OptionError(f"exactness={self.exactness!r}: expected one of {', '.join(map(repr, EXACTNESS))}.")
        if self.verify not in (None, True, False):
            raise OptionError(
                f"verify={self.verify!r}: expected True, False, or None to check at capacity where it is cheap."
            )
        for name in ("egraph_rounds", "egraph_nodes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name}={value!r}: expected an integer of at least 1.")
        if not isinstance(self.egraph_seconds, int | float) or not self.egraph_seconds > 0:
            raise OptionError(f"egraph_seconds={self.egraph_seconds!r}: expected a number of seconds above 0.")

    def changes(self) -> dict[str, object]:
        """The options that differ from the defaults."""
        default = CompileOptions()
        return {name: value for name, value in vars(self).items() if value != getattr(default, name)}

    def plan_key(self) -> str:
        """The options on which a plan depends, as text."""
        text = f"optimize={self.optimize} fuse={self.fuse} exactness={self.exactness}"
        if not self.uses_egraph:
            return text
        return f"{text} rounds={self.egraph_rounds} nodes={self.egraph_nodes}"

    @property
    def uses_egraph(self) -> bool:
        """Does a build run the e-graph?"""
        return self.optimize and self.egraph

    @property
    def cache_folder(self) -> str | None:
        """The folder for plans and compiled code; None means the user's cache folder."""
        return self.cache_dir or os.environ.get("WHOLESTEP_CACHE_DIR") or None

    @property
    def compiler_command(self) -> str | None:
        """The C compiler from the options or $CC; None means to search for one."""
        return self.compiler or os.environ.get("CC") or None


def is_profiled() -> bool:
    """Is this process run by one of NVIDIA's profilers, which read NVTX ranges?"""
    return bool(os.environ.get("NVTX_INJECTION64_PATH"))


def thread_count(threads: int | None, default: int, most: int) -> int:
    """The number of threads of a session: the argument, else $WHOLESTEP_THREADS, else `default`."""
    origin, wanted = "threads", threads
    if wanted is None:
        text = os.environ.get("WHOLESTEP_THREADS", "")
        if not text:
            return default
        origin, wanted = "WHOLESTEP_THREADS", int(text) if text.strip().isdecimal() else -1
        shown: object = text
    else:
        shown = threads
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= most:
        raise OptionError(f"{origin}={shown!r}: expected an integer from 1 to {most}; leave it out to use {default}.")
    return wanted


@dataclass(frozen=True)
class Launch:
    """The launch variables of this process, which is one of several ranks."""

    rank: int
    count: int | None  # number of ranks; None if only MPI knows it
    ours: bool  # was it started by `wholestep launch`?  Its processes train together without `workers=` in the script
    attempt: int = 0  # number of earlier starts of the same job
    restarts: int = 0  # the largest number of restarts
    since: float = 0.0  # time of the first start, in seconds since 1970: older checkpoints do not belong to the job
    notes: int | None = None  # a file descriptor for the last step; its other end notices when this process ends
    rendezvous: str = ""  # host:port of the rendezvous of the ranks; "": over MPI
    secret: str = field(default="", repr=False)  # the job's secret, in hexadecimal digits
    node: str = ""  # the launcher's name of the machine


# Variables with the rank and the number of ranks: of our launcher, MPICH and its derivatives, Open MPI, Slurm.
LAUNCHERS = (
    ("WHOLESTEP_RANK", "WHOLESTEP_RANKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def read_launch() -> Launch | None:
    """The launch variables; None in a process that was not launched."""
    getenv = os.environ.get
    for rank, count in LAUNCHERS:
        if (text := getenv(rank, "")).isdecimal():
            size = getenv(count, "")
            return Launch(
                int(text),
                int(size) if size.isdecimal() else None,
                bool(getenv("WHOLESTEP_RANKS")),
                int(getenv("WHOLESTEP_ATTEMPT") or 0),
                int(getenv("WHOLESTEP_RESTARTS") or 0),
                float(getenv("WHOLESTEP_SINCE") or 0),
                int(getenv("WHOLESTEP_NOTES") or 0) or None,
                getenv("WHOLESTEP_RENDEZVOUS", ""),
                getenv("WHOLESTEP_SECRET", ""),
                getenv("WHOLESTEP_NODE", ""),
            )
    return None


def launch_variables(count: int, attempt: int, restarts: int, since: float, threads: int | None) -> dict[str, str]:
    """The variables for the ranks of a job; `threads` of each rank, unless the user has set $WHOLESTEP_THREADS."""
    numbers = {"WHOLESTEP_RANKS": count, "WHOLESTEP_ATTEMPT": attempt, "WHOLESTEP_RESTARTS": restarts}
    variables = {**{name: str(value) for name, value in numbers.items()}, "WHOLESTEP_SINCE": repr(since)}
    if threads is not None and not os.environ.get("WHOLESTEP_THREADS"):
        variables["WHOLESTEP_THREADS"] = str(threads)
    return variables


def rank_variables(rank: int, rendezvous: tuple[str, int], secret: bytes, node: str = "") -> dict[str, str]:
    """The variables with which a rank joins its job; they contain the secret."""
    return {
        "WHOLESTEP_RANK": str(rank),
        "WHOLESTEP_RENDEZVOUS": "{}:{}".format(*rendezvous),
        "WHOLESTEP_SECRET": secret.hex(),
        "WHOLESTEP_NODE": node,
    }


def notes_variables(file: int) -> dict[str, str]:
    """The variable of a process that monitors a rank."""
    return {"WHOLESTEP_NOTES": str(file)}


def local_variables() -> dict[str, str]:
    """Defaults for ranks on one machine: NCCL listens on loopback."""
    return {"NCCL_SOCKET_IFNAME": "lo"}


# Prefixes of the variables that are passed to ranks on other machines.
CARRIED = ("WHOLESTEP_", "NCCL_")


def carried_variables() -> dict[str, str]:
    """The variables of this process that are passed to ranks on other machines."""
    return {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}


def remote_shell() -> list[str]:
    """The command that runs a command on another machine, whose name is appended: $WHOLESTEP_SSH, or else ssh."""
    import shlex  # imported here because few processes start ranks on other machines

    return shlex.split(os.environ.get("WHOLESTEP_SSH") or "ssh -x -o BatchMode=yes")


def ray_address() -> str | None:
    """The address of the user's Ray cluster; None without one."""
    return os.environ.get("RAY_ADDRESS") or None


def user_cache_folder() -> Path:
    """The user's cache folder for this package, as `platformdirs` names it.

    On Linux it is computed here: `platformdirs` loads `shutil` and `tempfile`, some 3 ms of a start from the cache.
    """
    if sys.platform != "linux":
        import platformdirs

        return Path(platformdirs.user_cache_dir("wholestep"))
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    folder = Path(base)
    return (folder if folder.is_absolute() else Path.home() / ".cache") / "wholestep"

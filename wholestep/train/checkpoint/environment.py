"""The environment of a run (versions, machine) for readers of its manifest; resuming does not depend on it."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wholestep import platforms

if TYPE_CHECKING:
    from wholestep.session import Session

REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # SHA-1, SHA-256


def run_environment(session: Session) -> dict[str, str]:
    """Versions, machine, device, command line, and the git revision of the working directory if there is one."""
    from wholestep import __version__

    revision = git_revision()
    return {
        "wholestep": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
        "processor": platforms.processor_name(),
        "device": session.device,
        "threads": str(session.threads),
        "command": shlex.join(sys.argv),
        **({} if revision is None else {"git": revision}),
    }


def git_revision(folder: Path | None = None) -> str | None:
    """The commit that is checked out in a folder (the working directory), read from git's files; None outside of git.

    Uncommitted changes are not part of it.
    """
    try:
        here = (folder or Path.cwd()).resolve()
        git = next((each / ".git" for each in (here, *here.parents) if (each / ".git").exists()), None)
        return None if git is None else _git_revision(_own_files(git))
    except (OSError, UnicodeDecodeError):  # a deleted folder, or files that git did not write
        return None


def _own_files(git: Path) -> Path:
    """The folder with git's files: `.git` itself, or, in a worktree or a submodule, the folder that the file `.git`
    names.
    """
    if git.is_dir():
        return git
    return git.parent / git.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")


def _git_revision(git: Path) -> str | None:
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref: "):
        return _revision(head)
    ref, shared = head.removeprefix("ref: "), git / "commondir"
    common = (
        git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
    )  # the folder with the branches
    loose = next((folder / ref for folder in (git, common) if (folder / ref).is_file()), None)
    if loose is not None:
        return _revision(loose.read_text(encoding="utf-8").strip())
    packed = common / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((_revision(words[0]) for line in lines if (words := line.split())[1:] == [ref]), None)


def _revision(text: str) -> str | None:
    return text if REVISION.fullmatch(text) else None

"""A pseudo-terminal whose output another process reads and discards."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

READ_ALL = "import os\ntry:\n    while os.read(0, 65536): pass\nexcept OSError: pass"


@contextmanager
def terminal_as_stderr() -> Iterator[None]:
    """Redirects standard error to a terminal, so that programs draw their progress bars."""
    ours, theirs = pty.openpty()
    before, size = sys.stderr, os.environ.get("COLUMNS")
    with subprocess.Popen([sys.executable, "-c", READ_ALL], stdin=ours) as reader, os.fdopen(theirs, "w") as screen:
        os.close(ours)
        sys.stderr, os.environ["COLUMNS"] = screen, "100"
        try:
            yield
        finally:
            sys.stderr = before
            os.environ.pop("COLUMNS") if size is None else os.environ.update(COLUMNS=size)
            screen.flush()
            reader.terminate()

"""Runs the page's modules in Node: cases as JSON to one process, values or errors back."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep

HERE = Path(__file__).parent
CORE = Path(wholestep.__file__).parent / "web" / "core"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="the page's modules run in Node; on Debian: apt-get install nodejs"
)
ARRAYS = {"Float32Array": np.float32, "Float64Array": np.float64, "Int32Array": np.int32, "Uint8Array": np.uint8}


def node(script: Path, *arguments: object, given: str = "") -> str:
    """The output of a script."""
    assert NODE is not None
    command = [NODE, str(script), *map(str, arguments)]
    done = subprocess.run(command, input=given.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def run(*cases: tuple[object, ...]) -> list[dict[str, Any]]:
    """The values or errors of `(name, *arguments)`, in one process."""
    return json.loads(node(HERE / "cases.mjs", CORE, given=json.dumps([[name, args] for name, *args in cases])))


def packed(data: bytes | str) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def unpacked(stored: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(stored["data"]), ARRAYS[stored["kind"]]).reshape(stored["shape"])

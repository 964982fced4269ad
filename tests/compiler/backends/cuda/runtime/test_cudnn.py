"""cuDNN's frontend: what is missing is told; graphs are recorded by its compiled module alone."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from wholestep.compiler.backends.cuda.libraries import cudnn
from wholestep.compiler.backends.cuda.libraries.cudnn import CudnnOp, CudnnTensor, Description
from wholestep.compiler.ir.types import bfloat16, float32
from wholestep.errors import OptionError

STUB = "unsigned long cudnnGetVersion(void) { return 91900; }"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    library = cudnn.library  # a test may replace it
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.parametrize(("found", "said"), [(None, "none"), ("1.32.0", "1.32.0")])
def test_without_the_frontend_it_is_said_what_to_install(
    found: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(metadata, "version", version)
    text = rf"by cuDNN, through nvidia-cudnn-frontend 1\.18\.0; found {said}\. Install it: pip install"
    with pytest.raises(OptionError, match=text):
        cudnn.library()


def test_a_description_reads_what_is_there() -> None:
    with pytest.raises(AssertionError, match="reads an undefined tensor"):
        Description((CudnnOp("relu", (("input", "x"),), ("y",)),), (), 0)


@pytest.mark.skipif(not any(d.name == cudnn.PACKAGE for d in metadata.distributions()), reason="no frontend of cuDNN")
def test_graphs_are_recorded_and_the_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private names of the pinned version: `_make_tensor`, `_set_data_type`, `_execute`."""
    (tmp_path / "stub.c").write_text(STUB)
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "stub.c", "-o", tmp_path / "stub.so"], check=True)
    module = cudnn._module()
    module._set_dlhandle_cudnn(ctypes.CDLL(str(tmp_path / "stub.so"))._handle)
    monkeypatch.setattr(cudnn, "library", lambda: module)
    shape, packed, plain = (2, 3, 64, 32), (64 * 288, 32, 288, 1), (64 * 96, 32, 96, 1)
    arrays = tuple(CudnnTensor(n, shape, packed, bfloat16) for n in "qkv")
    arrays += (CudnnTensor("out", shape, plain, bfloat16), CudnnTensor("lse", (2, 3, 64, 1), (192, 64, 1, 1), float32))
    options = (("attn_scale", 0.5), ("use_causal_mask", True), ("generate_stats", True))
    sdpa = CudnnOp("sdpa", tuple((n, n) for n in "qkv"), ("out", "lse"), options)
    prepared = object.__new__(cudnn.PreparedGraph)
    prepared._handle, prepared._uids = 4096, {a.name: uid for uid, a in enumerate(arrays, 1)}
    with cudnn._under_package_name(module):
        recorded = json.loads(str(prepared._record(module, Description((sdpa,), arrays, 1 << 20))))
    tensors = recorded["tensors"]
    assert {t["uid"]: tuple(t["stride"]) for t in tensors.values() if t["uid_assigned"]} == {
        uid: a.steps for uid, a in enumerate(arrays, 1)
    }
    assert "cudnn" not in sys.modules
    assert callable(module.pygraph._execute)

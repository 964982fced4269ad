"""A plan's source as several files: the same functions, the same bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import QUICK
from tests.support.lenet import lenet
from wholestep.compiler.backends.cpu.render.source import KERNELS_OF_A_FILE, source
from wholestep.compiler.backends.cpu.runtime import object_loader as cpu
from wholestep.compiler.backends.cpu.runtime.compiler import ENTRY_FILE, compile_c


def test_every_kernel_is_in_one_file_and_all_are_declared_where_they_are_called() -> None:
    plan, _ = ws.compile_training_graph(lenet(), optimizer=ws.Adam(), batch_size=8)
    parts = source(plan)
    files = parts.files
    names = [re.search(r"\b(ws_k\d+)\(", kernel)[1] for kernel in parts.kernels]  # type: ignore[index]
    defined = {
        file: re.findall(r"^(?:__attribute__\S+ )?void (ws_k\d+)\(.*\{$", text, re.M) for file, text in files.items()
    }
    assert sorted(n for found in defined.values() for n in found) == sorted(names)
    assert all(len(found) <= KERNELS_OF_A_FILE for found in defined.values())
    assert defined[ENTRY_FILE] == []
    assert re.findall(r"void (ws_k\d+)\(.*\);$", files[ENTRY_FILE], re.M) == names


def test_several_files_compute_the_bits_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    batch = {
        "x": rng.normal(size=(8, 1, 28, 28)).astype("float32"),
        "labels": rng.integers(0, 10, 8).astype("int32"),
    }

    def trained(folder: str) -> dict[str, Any]:
        options = ws.CompileOptions(cache_dir=str(tmp_path / folder), verify=False, egraph=False)
        session = ws.build_session(lenet(), optimizer=ws.Adam(), batch_size=8, threads=2, options=options)
        for _ in range(3):
            session.step(**batch)
        return session.state_dict()

    several = trained("several")
    monkeypatch.setattr(cpu, "compile_c", lambda text, files, **rest: compile_c(text, **rest))
    one = trained("one")
    assert all(np.array_equal(several[name], one[name]) for name in one)
    assert several.keys() == one.keys()


def test_a_few_kernels_are_one_file() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 4))
    g.set_outputs([(x @ g.parameter("w", (4, 3))).sum()])
    plan, _ = ws.compile_training_graph(g, batch_size=8)
    parts = source(plan)
    assert parts.files == {"plan.c": parts.text}


def test_a_quick_compiler_is_called_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def compiled(text: str, files: Any, **rest: Any) -> Path:
        called.append(files)
        return compile_c(text, files=files, **rest)

    monkeypatch.setattr(cpu, "compile_c", compiled)
    options = ws.CompileOptions(cache_dir=str(tmp_path), verify=False, egraph=False, compiler=QUICK)
    ws.build_session(lenet(), optimizer=ws.Adam(), batch_size=8, options=options)
    assert called == [None]

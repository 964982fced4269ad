"""Kernels that differ in sizes alone are one function: what may become an argument, and that no bit changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backends.cpu.render import source as render
from wholestep.compiler.backends.cpu.render.dedup_kernels import find_templates, template_of

KERNEL = """\
static void @(const ws_call *call, long lo, long hi, float *restrict x0, float *restrict x1) {{
  const float s0 = (float)call->derived[{slot}];
  for (long i0 = lo; i0 < hi; i0++) {{
    for (long i1 = 0; i1 < {rows}; i1++) {{
      float r1[{room}];
      #pragma omp simd
      for (long i2 = 0; i2 < {lanes}; i2++) {{
        x1[i0*{step} + i2] = s0 * x0[i0*{step} + i1/{divisor} + i1%{divisor} + i2] + 0x1.4p+5f;
      }}
    }}
  }}
}}"""
USUAL = {"slot": 3, "rows": 196, "room": 64, "lanes": 128, "step": 4096, "divisor": 56}


@pytest.mark.parametrize("other", [{"rows": 784}, {"step": 512}, {"slot": 5}, {"rows": 49, "step": 1024, "slot": 0}])
def test_loops_strides_and_places_of_scalars_are_arguments(other: dict[str, int]) -> None:
    one, two = KERNEL.format(**USUAL), KERNEL.format(**{**USUAL, **other})
    forms = find_templates([one, two])
    assert forms[one].text == forms[two].text
    assert "float *restrict x1, const long size0, const long size1, const long size2) {" in forms[one].text
    order = ("slot", "rows", "step")
    assert forms[two].sizes == tuple(str({**USUAL, **other}[name]) for name in order)


@pytest.mark.parametrize("other", [{"lanes": 256}, {"divisor": 28}, {"room": 32}, {"rows": 16}])
def test_what_gcc_makes_use_of_stays_in_the_text(other: dict[str, int]) -> None:
    assert find_templates([KERNEL.format(**USUAL), KERNEL.format(**{**USUAL, **other})]) == {}


def test_sizes_that_are_equal_in_one_kernel_alone_are_not_mixed_up() -> None:
    one, two = KERNEL.format(**USUAL), KERNEL.format(**{**USUAL, "rows": 4096})
    assert template_of(two).text.count("size1") == 3
    assert find_templates([one, two]) == {}


def test_a_kernel_that_nobody_shares_keeps_its_numbers() -> None:
    assert find_templates([KERNEL.format(**USUAL)]) == {}


def images() -> ws.nn.Module:
    layers = []
    for channels, outputs in ((3, 32), (32, 64), (64, 48)):
        layers += [ws.nn.Conv2d(channels, outputs, 3, stride=2, padding=1), ws.nn.BatchNorm2d(outputs), ws.nn.ReLU()]
    return ws.nn.Sequential(*layers, ws.nn.Flatten(), ws.nn.Linear(48 * 9, 10))


def test_shared_kernels_compute_the_bits_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(4, 3, 24, 24)).astype("f4"), "labels": rng.integers(0, 10, 4).astype("i4")}

    def trained(folder: str) -> tuple[dict[str, Any], str]:
        session = ws.build_session(
            images(),
            inputs=ws.Spec(("batch", 3, 24, 24)),
            targets=ws.Spec(("batch",), "int32"),
            loss="cross_entropy",
            optimizer=ws.Adam(),
            batch_size=4,
            threads=2,
            seed=0,
            options=ws.CompileOptions(cache_dir=str(tmp_path / folder), verify=False, egraph=False),
        )
        for _ in range(3):
            session.step(**batch)
        return session.state_dict(), session.source

    together, text = trained("shared")
    monkeypatch.setattr(render, "find_templates", lambda texts: {})
    apart, own_text = trained("apart")
    functions = [len(re.findall(r"^static .*void ws_k\d+\(", t, re.M)) for t in (text, own_text)]
    assert functions[0] < functions[1]
    assert "const long size0" in text
    assert "const long size0" not in own_text
    assert together.keys() == apart.keys()
    assert all(np.array_equal(together[name], apart[name]) for name in apart)

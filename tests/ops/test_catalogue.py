"""Functions that are expressions over others against torch: values, and gradients with an upstream other than 1.

All are one step, run by the reference in float64; those whose kernels nothing else has, compiled, in float32.
"""

from __future__ import annotations

import functools

import pytest

import wholestep as ws
from tests.ops.cases.catalogue import CATALOGUE
from tests.ops.compiled_ops import UPSTREAM, Compiled, record
from tests.ops.table import Array, Case
from tests.ops.test_ops import reference
from tests.support.compilers import quick
from tests.support.oracles import assert_close

CASES = {f"{group}: {name}": Case(*row) for group, rows in CATALOGUE.items() for name, row in rows.items()}
RUNS = {
    "float64": {"device": "reference", "options": ws.CompileOptions(verify=False, optimize=False)},
    "float32": {"options": quick()},
}
COMPILED = [
    "convolutions: conv_transpose2d, every option", "convolutions: conv3d", "pools: avg_pool2d, ceil_mode",
    "pools: max_pool2d, ceil_mode, far outside", "sizes: bilinear", "sizes: pad, reflect",
    "selection: put, sorted, summed", "selection: index_put, index_copy, cumprod",
]  # fmt: skip
ROWS = [*(("float64", name) for name in CASES), *(("float32", name) for name in COMPILED)]


@functools.cache
def found(dtype: str) -> Compiled:
    g, inputs = ws.Graph(), {}
    cases = {name: CASES[name] for run, name in ROWS if run == dtype}
    terms = [record(g, name, case, dtype, inputs) for name, case in cases.items()]
    total = functools.reduce(ws.Tensor.__add__, [t for t in terms if t is not None])
    g.set_outputs({"loss": total * g.scalar("upstream", UPSTREAM)})
    out = ws.build_session(g, optimizer=ws.SGD(lr=0.0), **RUNS[dtype]).step(inputs).outputs
    grads: dict[str, list[Array]] = {
        name: [out[f"{name}/{i}.grad"] for i in range(len(case.arrays)) if f"{name}/{i}.grad" in out]
        for name, case in cases.items()
    }
    return Compiled({name: out[name] for name in cases}, grads)


@pytest.mark.parametrize(("dtype", "name"), ROWS)
def test_value_and_gradients_equal_torch(dtype: str, name: str) -> None:
    ours, (value, grads) = found(dtype), reference(CASES[name], dtype)
    exact = "exact" if ours.values[name].dtype.kind in "iub" else dtype
    assert_close(ours.values[name], value, exact)
    assert len(ours.grads[name]) == len(grads)
    for mine, theirs in zip(ours.grads[name], grads, strict=True):
        assert_close(mine, theirs, dtype)

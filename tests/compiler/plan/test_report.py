from __future__ import annotations

import mmap

import wholestep as ws
from tests.support.sessions import mlp
from wholestep.compiler.plan.io.report import plan_report, printable
from wholestep.compiler.plan.model.kernel import Space
from wholestep.compiler.plan.model.target_formats import footprint

PLAN, _ = ws.compile_training_graph(mlp(), optimizer=ws.Adam(), batch_size=13)


def test_every_byte_is_somewhere() -> None:
    parts = footprint(PLAN, threads=3)
    rows = dict(parts.rows())
    assert sum(rows.values()) == parts.peak_bytes
    assert parts.peak_bytes % mmap.PAGESIZE == 0
    assert rows["state"] == sum(b.bytes for b in PLAN.buffers if b.space is Space.STATE)
    assert rows["workspace"] == 3 * footprint(PLAN, threads=1).workspace
    assert rows["staging"] == 1088 + 64  # 13 rows of x (1040 bytes) and of labels, each in whole cache lines


def test_the_table_shows_every_kernel_and_the_totals() -> None:
    report = plan_report(PLAN, threads=2, heading="train")
    text = str(report)
    lines = text.splitlines()
    assert lines[0].startswith("train: batch=13, target ")
    assert sum(line.lstrip().split(" ")[0].isdigit() for line in lines) == len(PLAN.kernels)
    assert f"{report.flops:,}" in text
    assert f"{report.bytes_moved:,}" in text
    assert f"{report.peak_bytes:,}" in text
    assert report.flops == sum(k.flops for k in PLAN.kernels)


def test_functions_that_share_a_kernel_are_counted() -> None:
    report = plan_report(PLAN, threads=2)
    assert report.fusions == {"matmul + relu": 1}
    assert "in one kernel: matmul + relu: 1" in str(report).splitlines()


def test_names_stay_on_one_line_and_cannot_end_a_comment() -> None:
    assert printable("a\nb\t*/ c\u2603 \x00") == "a\\nb\\t*\\/ c\u2603 \\x00"

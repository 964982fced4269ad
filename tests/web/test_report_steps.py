"""The compiled steps of a report: kernels, roofline, memory, layers and code, against the plan; thinned curves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from tests.support.browser import INSTALL, Tab, browser_path
from tests.web.pages import ready
from tests.web.test_report import HOSTILE, report, rewrite, trained
from tests.web.test_screenshots import CUT, IMAGES, SIZES, keep
from wholestep.cli import app
from wholestep.cli.plans import plans_at
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.plan.io.report import plan_report
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.web.report import thin, write_report
from wholestep.web.steps import arena_in_use, describe_plan, source_by_kernel

in_browser = pytest.mark.skipif(browser_path() is None, reason=INSTALL)
SCRIPT = """
import wholestep as ws


def build() -> ws.Experiment:
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, 24), ws.nn.ReLU(), ws.nn.Linear(24, 10))
    return ws.Experiment(model=model, data=(x[:600], y[:600]), validation=(x[-300:], y[-300:]), loss="cross_entropy",
                         optimizer=ws.Adam(lr=3e-3), epochs=2, batch_size=50)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line, on the CPU."""
    folder = tmp_path_factory.mktemp("step")
    (folder / "digits.py").write_text(SCRIPT)
    place = folder / "runs" / "digits"
    done = CliRunner().invoke(app, ["train", str(folder / "digits.py"), "--folder", str(place), "--no-progress"])
    assert done.exit_code == 0, done.output
    return place


@pytest.fixture(scope="module")
def plan(run: Path) -> Plan:
    ((_, plan),) = plans_at(run)
    return plan


def brute_force(plan: Plan) -> list[int]:
    """The bytes in use at each kernel, buffer by buffer."""
    arena = [b for b in plan.buffers if b.space is Space.ARENA]
    return [sum(b.bytes for b in arena if b.first <= i <= b.last) for i in range(len(plan.kernels))]


def test_memory_over_the_step_is_that_of_the_buffers(plan: Plan) -> None:
    assert list(arena_in_use(plan)) == brute_force(plan)
    report_of_plan = plan_report(plan, 1)
    assert 0 < max(arena_in_use(plan)) <= report_of_plan.footprint.arena
    described = describe_plan(plan)
    assert sum(described["memory"].values()) == described["peak"]
    assert sum(k["flops"] for k in described["kernels"]) == report_of_plan.flops
    assert sum(k["bytes"] for k in described["kernels"]) == report_of_plan.bytes_moved


def test_the_code_of_a_kernel_is_that_of_the_program(plan: Plan) -> None:
    sources, text = source_by_kernel(plan), render(plan)
    assert sources.keys() == {kernel.id for kernel in plan.kernels}
    for kernel, source in sources.items():
        assert source in text
        assert "ws_k" in source.partition("(")[0], kernel


@pytest.mark.parametrize("device", ["null:cuda/sm_90", "null:cpu/portable", "reference"])
def test_steps_of_other_targets(device: str) -> None:
    """A plan for a GPU has its kernels' code without a GPU; the reference device has none."""
    session = ws.build_session(
        ws.nn.Sequential(ws.nn.Linear(8, 16), ws.nn.ReLU(), ws.nn.Linear(16, 4)), inputs={"x": ws.Spec(("batch", 8))},
        targets=ws.Spec(("batch",), "int32"), batch_size=32, loss="cross_entropy", device=device,
    )  # fmt: skip
    described = describe_plan(session.plan)
    code = [kernel["source"] for kernel in described["kernels"]]
    if device == "reference":
        assert not any(code)
    else:
        assert all(code)
        assert all(("__global__" in each) == ("cuda" in device) for each in code)
        assert all(kernel["seconds"] > 0 or not kernel["bytes"] for kernel in described["kernels"])


def test_thinned_curves_keep_their_extremes() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 39, 40, 41, 100, 9_999, 10_000):
        values = rng.normal(size=count).cumsum()
        at, thinned = thin(range(1, count + 1), values.tolist(), 40)
        assert len(at) == len(thinned) <= 40 or count <= 40
        assert (at[0], at[-1]) == (1, count)
        assert [values[i - 1] for i in at] == thinned
        assert (min(thinned), max(thinned)) == (values.min(), values.max())
        assert at == sorted(set(at))
    at, thinned = thin(range(100), [float("nan")] * 100, 40)
    assert (at, thinned) == ([], [])


@in_browser
def test_a_kernel_shows_its_code(run: Path, plan: Plan, tmp_path: Path) -> None:
    page = write_report([run], tmp_path / "report.html")
    described = describe_plan(plan)
    with ready(page, tmp_path) as tab:
        assert tab.evaluate("document.querySelectorAll('.kernels tbody tr').length") == len(plan.kernels)
        assert tab.evaluate("document.querySelectorAll('#steps svg .block').length") == len(plan.kernels)
        slowest = max(described["kernels"], key=lambda kernel: kernel["seconds"])
        tab.click(".kernels tbody button")
        assert tab.text(".code pre") == slowest["source"]
        assert (
            tab.evaluate("document.querySelectorAll('[aria-pressed=true]').length") == 2
        )  # in the table, in its layer
        peak = int(np.argmax(brute_force(plan)))
        tab.evaluate("document.querySelector('#steps svg').focus()")
        for key in ("ArrowRight", "ArrowLeft", "Enter"):
            tab.press(key)
        assert tab.text(".code pre") == described["kernels"][peak]["source"]
        tab.click("#steps svg .block")
        assert tab.text(".code pre") == described["kernels"][0]["source"]
        layers = tab.evaluate("[...document.querySelectorAll('.graph > details > summary')].map((e) => e.textContent)")
        assert [text.partition(":")[0] for text in layers] == ["0", "2", "(outside layers)"]
        tab.click(".graph summary")
        assert tab.evaluate("document.querySelector('.graph details').open") is False


def chart_ends(tab: Tab) -> tuple[str, str]:
    return tab.evaluate("[document.querySelector('#from').value, document.querySelector('#to').value]")


@in_browser
def test_curves_are_zoomed_by_dragging_and_by_keys(tmp_path: Path) -> None:
    history = trained(tmp_path / "run", ws.SGD(lr=0.1), epochs=8)
    with ready(write_report([tmp_path / "run"], tmp_path / "report.html"), tmp_path) as tab:
        titles = tab.evaluate("[...document.querySelectorAll('#charts strong')].map((e) => e.textContent)")
        assert titles == ["Loss", "Accuracy", "Learning rate", "Steps per second"]
        chart = "#charts svg"
        tab.drag(chart, (0.5, 0.5), (0.6, 0.5), (0.95, 0.5))
        first, last = map(int, chart_ends(tab))
        assert 3 <= first <= 4
        assert 7 <= last <= 8
        tab.press("0")
        assert chart_ends(tab) == ["0", ""]
        tab.press("+")
        assert chart_ends(tab) == ["2", "6"]
        tab.press("l")
        assert tab.evaluate("document.querySelector('#log').checked") is True
        (place,) = tab._places(chart, (0.99, 0.5))
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        assert f"{history['loss'][5]:.4g} at 6" in tab.text("#charts figcaption")


def test_gradient_norms_and_speed_are_curves(tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    history = ws.fit(
        ws.nn.Linear(64, 10), (x[:200], y[:200]), loss="cross_entropy", epochs=3, gradient_norm=True,
        device="reference", checkpoint=tmp_path / "run", progress=False,
    )  # fmt: skip
    (run,) = page_spec(write_report([tmp_path / "run"], tmp_path / "report.html"))["runs"]
    assert run["series"]["grad_norm"] == [[1, 2, 3], history["grad_norm"]]
    assert run["series"]["steps_per_second"] == [[1, 2, 3], [each.steps_per_second for each in history.epochs]]
    assert all(each.steps_per_second > 0 for each in history.epochs)
    assert "steps_per_second" not in history.to_json()  # equal runs have equal histories
    assert ws.TrainHistory.from_json(history.to_json()) == history


@in_browser
def test_a_step_is_built_and_timed_again(run: Path, tmp_path: Path) -> None:
    code, text = report(run, "-o", tmp_path / "report.html", "--rebuild")
    assert code == 0, text
    spec = page_spec(tmp_path / "report.html")
    (step,) = spec["steps"]
    assert set(step["times"]) == {"0", "1", "2", "(loss)"}
    assert sum(row["share"] for row in step["times"].values()) == pytest.approx(1)
    assert step["activations"]
    assert all(kernel["measured"] > 0 for kernel in step["kernels"])
    x, y = (array[-300:] for array in ws.datasets.digits())
    model = ws.nn.Sequential(ws.nn.Linear(64, 24), ws.nn.ReLU(), ws.nn.Linear(24, 10))
    model.load(run)
    matrix = np.zeros((10, 10), int)
    np.add.at(matrix, (y, np.asarray(model.predict(x)).argmax(1)), 1)
    assert spec["predictions"]["digits"]["matrix"] == matrix.tolist()
    with ready(tmp_path / "report.html", tmp_path) as tab:
        headings = tab.evaluate("[...document.querySelectorAll('.kernels th[scope=col]')].map((e) => e.textContent)")
        assert headings[-4:] == ["Measured", "GFLOP/s", "GB/s", "Of price"]
        captions = tab.evaluate("[...document.querySelectorAll('#matrix caption')].map((e) => e.textContent)")
        assert captions == ["digits: predictions of 300 of 300 validation rows"]
    code, text = report(run, "--script", run.parents[1] / "digits.py")
    assert code == 1
    assert "--script is what --rebuild builds again: give both, or neither" in text


def page_spec(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    return json.loads(text.partition('id="spec">')[2].partition("</script>")[0])


def test_residuals_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    model = ws.nn.Linear(3, 1)
    experiment = ws.Experiment(model=model, data=(x, y), validation=0.25, loss="mse", checkpoint=tmp_path / "run")
    experiment.fit(progress=False)
    page = write_report([tmp_path / "run"], tmp_path / "report.html", {tmp_path / "run": experiment})
    predictions = page_spec(page)["predictions"]["run"]
    pairs = np.array(predictions["pairs"])
    assert (predictions["rows"], predictions["data"]) == (50, "validation")
    held = {float(value): row for value, row in zip(y.ravel(), x, strict=True)}
    rows = np.stack([held[actual] for actual in pairs[:, 0]])
    np.testing.assert_allclose(np.asarray(model.predict(rows)).ravel(), pairs[:, 1], rtol=1e-5, atol=1e-6)


@in_browser
def test_a_damaged_plan_is_named(run: Path, tmp_path: Path) -> None:
    """Plans come from a run's folder, which may be someone else's."""
    trained(tmp_path / "run", ws.SGD(lr=0.1), epochs=1)
    (tmp_path / "run" / "plans" / f"{'b' * 16}.plan").write_bytes(b"<script>" * 40)
    rewrite(max((tmp_path / "run").glob("step-*")), config={HOSTILE: HOSTILE})
    with ready(write_report([tmp_path / "run"], tmp_path / "report.html"), tmp_path) as tab:
        assert f"{'b' * 16}.plan: " in tab.text("#steps .alert")
        assert tab.evaluate("document.querySelectorAll('script').length") == 2


@in_browser
@pytest.mark.long
def test_a_step_fits_its_window(run: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    code, text = report(run, "-o", tmp_path / "report.html", "--rebuild")
    assert code == 0, text
    with ready(tmp_path / "report.html", tmp_path) as tab:
        tab.click(".kernels tbody button")
        for size, (width, height) in SIZES.items():
            for dark in (False, True):
                tab.resize(width, height, dark)
                tab.evaluate("document.querySelector('#steps').scrollIntoView()")
                name = f"step-{size}-{'dark' if dark else 'light'}.png"
                tab.screenshot(tmp_path / name, whole=False)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert tab.evaluate(CUT) == []
                if pytestconfig.getoption("update_golden") and (IMAGES / f"page-{name}").exists():
                    keep(tmp_path / name, IMAGES / f"page-{name}")

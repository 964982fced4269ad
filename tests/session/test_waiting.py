"""A build that takes long says so, at a terminal."""

from __future__ import annotations

import io
import time

import pytest

import wholestep as ws
from wholestep.compiler.spans import Spans
from wholestep.session.building import build


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str) -> None:
        """Until another thread has written it."""
        deadline = time.monotonic() + 60
        while text not in self.getvalue():
            assert time.monotonic() < deadline, self.getvalue()
            time.sleep(0.001)


def built() -> None:
    g = ws.Graph()
    g.set_outputs([(g.input("x", (3,)) * g.parameter("w", (3,))).sum()])
    ws.build_session(g, optimizer=ws.SGD(lr=0.1), device="reference")


def test_a_long_build_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, spans = Terminal(), Spans()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(build, "PATIENCE", 0.0)
    monkeypatch.setattr(build, "EVERY", 0.01)
    with build.show_build_progress(spans):
        words = {"optimize_full": "planning", "gcc": "compiling", "self_check": "checking the numbers"}
        for name, word in words.items():
            assert word not in terminal.getvalue() or name == "optimize_full", "it says what is being done"
            with spans.span(name):
                terminal.wait_for(f"building the step: {word}")
    assert terminal.getvalue().endswith("\r\x1b[K"), "the line is taken away"


@pytest.mark.parametrize(("terminal", "patience"), [(Terminal(), 60.0), (io.StringIO(), 0.0)], ids=["short", "file"])
def test_nothing_is_said_in_time_or_into_a_file(
    monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO, patience: float
) -> None:
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(build, "PATIENCE", patience)
    built()
    assert terminal.getvalue() == ""


def test_an_error_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(build, "PATIENCE", 0.0)

    def failing() -> None:
        with build.show_build_progress(Spans()):
            terminal.wait_for("planning")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert terminal.getvalue().endswith("\r\x1b[K")

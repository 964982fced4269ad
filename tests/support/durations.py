"""CPU seconds of the tests by folder, compared with the record in `durations.json`.

A complete run prints them and warns of folders that take 20 % more than recorded.  CPU time of a test is that of its
process and of the processes it started, so that a busy machine measures what a quiet one does; a short calculation,
timed in each run, stands for the speed of the machine.  Files that take long start first.

    python -m pytest -n 2 --dist worksteal -q --update-durations      with an empty cache: writes the file
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).with_name("durations.json")
ROOT = Path(__file__).parents[2]
MORE = 1.2  # times the recorded seconds from which a folder is warned of,
SLOW = 0.3  # seconds from which a test is on record by itself
SECONDS = 2.0  # if it takes at least so many more
PROPERTY = "cpu_seconds"
TICKS = os.sysconf("SC_CLK_TCK")


def recorded() -> dict[str, Any]:
    """What is on record: `unit` seconds of the calculation, `folders` and `files` by path below the repository."""
    if not RECORD.exists():
        return {"unit": 1.0, "folders": {}, "files": {}}
    read: dict[str, Any] = json.loads(RECORD.read_text())
    return read


def write(new: Mapping[str, Any]) -> None:
    """Replace some entries of the record."""
    RECORD.write_text(json.dumps({**recorded(), **new}, indent=1) + "\n")


def cpu_seconds() -> float:
    """Of this process, of its children that have ended, and of those that run."""
    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in ended) + sum(map(_ticks, _children())) / TICKS


def _children() -> Iterator[str]:
    for listed in Path("/proc/self/task").glob("*/children"):
        try:
            yield from listed.read_text().split()
        except OSError:  # a thread that has just ended
            continue


def _ticks(process: str) -> int:
    """Of a process and its own ended children."""
    try:
        fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


def machine_unit() -> float:
    """CPU seconds of a fixed calculation: how slow this machine is; the least of five."""
    return min(_calculation() for _ in range(5))


def _calculation() -> float:
    begun = time.process_time()
    total = 0
    for i in range(300_000):
        total += i * i % 7
    return time.process_time() - begun


class Timing:
    """Of a process that runs tests: each report carries the seconds of its test."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.begun = cpu_seconds()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties.append((PROPERTY, cpu_seconds() - self.begun))


class Summary:
    """Of the process that reports: what all of them measured."""

    def __init__(self, is_whole: bool, update: bool) -> None:
        self.is_whole, self.update = is_whole, update
        self.files: dict[str, float] = defaultdict(float)
        self.slow: dict[str, float] = {}
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            file, seconds = report.nodeid.partition("::")[0], float(dict(report.user_properties).get(PROPERTY, 0.0))
            self.files[file] += seconds
            self.tests[file] += 1
            if seconds >= SLOW:
                self.slow[report.nodeid] = round(seconds, 1)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.is_whole:
            return
        unit, record = machine_unit(), recorded()
        folders = by_folder(self.files, self.tests)
        if self.update:
            write({**_record(unit, folders, self.files), "slow": dict(sorted(self.slow.items()))})
            terminalreporter.write_line(f"wrote {RECORD}")
        lines = comparison(folders, record, unit / record["unit"])
        if lines:
            terminalreporter.section("CPU seconds by folder, and on record")
        for line, is_more in lines:
            terminalreporter.write_line(line, yellow=is_more)


def by_folder(files: Mapping[str, float], tests: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Folder -> its seconds and its number of tests."""
    folders: dict[str, dict[str, float]] = {}
    for file, seconds in sorted(files.items()):
        folder = folders.setdefault(str(Path(file).parent), {"seconds": 0.0, "tests": 0})
        folder["seconds"] += seconds
        folder["tests"] += tests[file]
    return folders


def comparison(
    folders: Mapping[str, Mapping[str, float]], record: Mapping[str, Any], scale: float
) -> list[tuple[str, bool]]:
    """A line for each folder all of whose tests ran, and whether it took more than the record allows."""
    lines = []
    for name, measured in sorted(folders.items(), key=lambda each: -each[1]["seconds"]):
        known = record["folders"].get(name)
        if known is None or measured["tests"] < known["tests"]:
            continue
        expected = known["seconds"] * scale
        is_more = measured["seconds"] > max(MORE * expected, expected + SECONDS)
        warning = f"  +{measured['seconds'] / max(expected, 0.1) - 1:.0%}: more than recorded" if is_more else ""
        lines.append((f"{name:44}{measured['seconds']:8.1f}{expected:8.1f}{warning}", is_more))
    return lines


def _record(unit: float, folders: Mapping[str, Mapping[str, float]], files: Mapping[str, float]) -> dict[str, Any]:
    rounded = {name: {"seconds": round(f["seconds"], 1), "tests": f["tests"]} for name, f in folders.items()}
    long = {name: round(seconds, 1) for name, seconds in sorted(files.items()) if seconds >= 0.5}
    return {"unit": round(unit, 4), "folders": rounded, "files": long}


def long_files_first(items: list[pytest.Item], processes: int) -> None:
    """Sort tests by the recorded seconds of their files, dealt out to the parts that processes begin with."""
    seconds = recorded()["files"]
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    longest = sorted(files, key=lambda file: (-seconds.get(file, 0.0), file))
    items[:] = [item for first in range(processes) for file in longest[first::processes] for item in files[file]]

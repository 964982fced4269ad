"""`make dist`: build the wheel and the source distribution, check them, and show what an installation costs.

The wheel is installed with its dependencies into a bare virtual environment in a folder of its own, where the first
example of the README trains.  Printed are the sizes of the files and of every installed package, and the times of the
import and of the first step, with an empty and with a filled cache.  A figure above its limit is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MEGABYTES, MOST_PACKAGES = 120, 20  # of an installation, without pip and setuptools
LEAST_ACCURACY = 0.9  # of the README's first example, on validation rows
REPEATS = 5  # processes whose import and first step are timed; the fastest counts

INSTALLED = """
import json
from importlib import metadata
def size(each):
    files = [f.locate() for f in each.files or ()]
    return sum(f.stat().st_size for f in files if f.is_file())
print(json.dumps({each.metadata["Name"]: size(each) for each in metadata.distributions()}))
"""
TIMED = """
import time
start = time.perf_counter()
import wholestep as ws
imported = time.perf_counter()
x, y = ws.datasets.digits()
model = ws.nn.Sequential(ws.nn.Linear(64, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))
before = time.perf_counter()
session = ws.build_session(
    model, inputs=ws.Spec(("batch", 64)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=32
)
float(session.step(x=x[:32], labels=y[:32]).loss)
print(imported - start, time.perf_counter() - before)
"""


def readme_example() -> str:
    """The first block of Python in the README, which then prints what it reached."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, "the README has no block of Python"
    return found[1] + "print(history['val_accuracy'][-1])\n"


def run(command: Sequence[str | Path], **options: object) -> str:
    """The output of a command; its errors end the build."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution, checked."""
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT])
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run([sys.executable, "-m", "twine", "check", "--strict", wheel, source])
    if not wheel.name.endswith("-py3-none-any.whl"):
        raise SystemExit(f"{wheel.name} is bound to a platform; expected py3-none-any")
    with zipfile.ZipFile(wheel) as files:
        compiled = [name for name in files.namelist() if name.endswith((".so", ".pyd", ".dylib", ".o", ".pyc"))]
    if compiled:
        raise SystemExit(f"the wheel has compiled files: {', '.join(compiled)}")
    return wheel, source


def install(package: Path, folder: Path, interpreter: str = sys.executable) -> Path:
    """A bare virtual environment with the package; returns its interpreter."""
    run([interpreter, "-m", "venv", folder])
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package])
    return python


def print_sizes(python: Path) -> list[str]:
    """Print what is installed; returns what exceeds a limit."""
    sizes: dict[str, int] = json.loads(run([python, "-c", INSTALLED]))
    own = {name: size for name, size in sizes.items() if name not in ("pip", "setuptools")}
    total = sum(own.values()) / 1e6
    print(f"{len(own)} packages, {total:.1f} MB with compiled Python (limits: {MOST_PACKAGES}, {MOST_MEGABYTES} MB)")
    for name, size in sorted(own.items(), key=lambda item: -item[1]):
        print(f"  {size / 1e6:6.1f}  {name}")
    too_much = [f"{len(own)} packages"] if len(own) > MOST_PACKAGES else []
    return too_much + ([f"{total:.1f} MB"] if total > MOST_MEGABYTES else [])


def print_times(python: Path, folder: Path) -> None:
    """Print the times of the import and of a first step, with an empty and with a filled cache."""

    def times(cache: str) -> tuple[float, float]:
        environment = {**os.environ, "WHOLESTEP_CACHE_DIR": str(folder / cache)}
        imported, step = run([python, "-c", TIMED], cwd=folder, env=environment).split()
        return float(imported), float(step)

    empty = [times(f"cache{i}") for i in range(REPEATS)]
    filled = [times("cache0") for _ in range(REPEATS)]
    print(f"import {1e3 * min(t for t, _ in empty + filled):.0f} ms")
    print(f"first step {min(t for _, t in empty):.2f} s, from the cache {1e3 * min(t for _, t in filled):.0f} ms")


def train(python: Path, folder: Path) -> float:
    """The accuracy that the README's first example reaches."""
    environment = {**os.environ, "WHOLESTEP_CACHE_DIR": str(folder / "cache")}
    accuracy = float(run([python, "-c", readme_example()], cwd=folder, env=environment))
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(f"the example of the README reached the validation accuracy {accuracy}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder of the built files")
    parser.add_argument("--python", nargs="*", default=[], help="other interpreters that install the wheel and train")
    arguments = parser.parse_args()
    out = arguments.out
    for old in [*out.glob("wholestep-*.whl"), *out.glob("wholestep-*.tar.gz")]:
        old.unlink()
    packages = build(out)
    for each in packages:
        print(f"{each.name}: {each.stat().st_size / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, source = (install(each, folder / f"venv{i}") for i, each in enumerate(packages))
        too_much = print_sizes(wheel)
        accuracy = min(train(python, folder) for python in (wheel, source))
        print(f"the first example of the README trains: validation accuracy {accuracy:.3f}")
        for i, interpreter in enumerate(arguments.python):
            other = install(packages[0], folder / f"other{i}", interpreter)
            print(f"{run([other, '--version']).strip()}: validation accuracy {train(other, folder):.3f}")
        print_times(wheel, folder)
    if too_much:
        raise SystemExit(f"the installation is too large: {', '.join(too_much)}")


if __name__ == "__main__":
    main()

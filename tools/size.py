"""The size and shape of the package: `make size`.

Lines by package and by capability, and five counts that say how easily a newcomer finds things: folders with many
files, class names defined more than once, functions named by a participle, small modules with one importer, and import
cycles between packages.  `--list` names every instance of each count; another tree is measured by its path:
`python tools/size.py ../other/wholestep`.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MANY_FILES = 20  # Python files directly in a folder, __init__.py included
SMALL = 70  # lines of a module, header and imports included
BUDGET = 102_000  # lines of the package before the capabilities of `LATER`
# Capability -> folders and files below the package; a module belongs to the first row that names it.  Those of `LATER`
# were added after the budget was set, and do not count against it.
LATER = {
    "private and per-row gradients": (
        "privacy", "compiler/passes/per_row", "steps/private_gradients", "steps/row_values", "train/row_sampling",
        "callbacks/privacy_ledger", "train/row_history",
    ),
    "replicas of a run": ("train/replicas", "train/tuning/intervals"),
    "insight: linter, replay, branches, charts": (
        "train/lint", "train/replay", "train/branch", "train/nonfinite", "session/inspect/nonfinite", "cli/examine",
        "charts", "notebook", "callbacks/loss_spikes", "session/verify/pieces",
    ),
    "exported steps": ("session/export", "compiler/backends/cpu/export"),
    "web page": ("web",),
    "platforms beside Linux, trust in hosts": ("platforms", "distributed/launch/authentication", "cli/trust"),
    "sockets and MPI between hosts": (
        "distributed/transport/sockets", "distributed/transport/mpi", "distributed/launch/hosts",
        "distributed/launch/agent", "distributed/launch/rendezvous",
    ),
    "own e-graph engine": (
        "compiler/passes/egraph/match", "compiler/passes/egraph/tables", "compiler/passes/egraph/rules/apply",
        "compiler/passes/egraph/rules/compile", "compiler/passes/egraph/rules/query",
    ),
    "advice on slow GPU kernels, tensor-core attention, grouped convolution": (
        "compiler/backends/gpu/efficiency", "session/inspect/slow_kernels", "compiler/backends/gpu/grids/attention_mma",
        "compiler/backends/gpu/grids/grouped_convolution", "compiler/backends/gpu/render/convolution/grouped",
        "compiler/backends/gpu/window_products", "compiler/passes/simplify/attention_masks",
        "compiler/passes/simplify/recognize_attention",
    ),
}  # fmt: skip
CAPABILITIES = {
    **LATER,
    "e-graph: rules, saturation, extraction": ("compiler/passes/egraph",),
    "IR and frontend": ("compiler/ir", "compiler/frontend"),
    "autodiff and other passes": ("compiler/passes", "compiler/pipeline"),
    "planner": ("compiler/plan", "compiler/memory_budget"),
    "GPUs, and NVIDIA's driver and libraries": ("compiler/backends/gpu", "compiler/backends/cuda"),
    "CPU": ("compiler/backends/cpu",),
    "what devices share, reference device": ("compiler",),
    "interop: PyTorch, ONNX, Keras": ("interop", "sklearn"),
    "session and steps": ("session", "steps", "accumulation"),
    "training, checkpoints, callbacks": ("train", "callbacks", "cli"),
    "several workers": ("distributed",),
    "library: layers, models, losses, optimizers, schedules, metrics, data": (
        "nn", "models", "losses", "optim", "schedules", "metrics", "data", "datasets",
    ),
    "errors, options, lazy imports": ("__init__", "__main__", "errors", "options", "lazy", "records"),
}  # fmt: skip
# Participles that do not end in -ed, without words that are imperatives too: read, run, set, put, cut, split.
IRREGULAR = frozenset((
    "begun", "bound", "broken", "brought", "built", "bought", "caught", "chosen", "dealt", "done", "drawn",
    "driven", "fed", "forgotten", "found", "given", "gone", "grown", "held", "hidden", "hung", "kept",
    "known", "laid", "led", "left", "lent", "lost", "made", "meant", "met", "paid", "said", "seen", "sent",
    "shown", "sold", "sought", "spent", "spun", "stood", "struck", "stuck", "taken", "thought", "thrown",
    "told", "torn", "understood", "won", "worn", "wound", "woven", "written",
))  # fmt: skip


@dataclass(frozen=True)
class Module:
    """A source file of the package."""

    name: str  # dotted
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def code_lines(self) -> int:
        """Lines without blank lines, comments and docstrings."""
        documented = set[int]()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
                documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        kept = (line.strip() for i, line in enumerate(self.text.splitlines(), 1) if i not in documented)
        return sum(bool(line) and not line.startswith("#") for line in kept)

    @property
    def package(self) -> str:
        """The part of the tree that it belongs to: two levels below `compiler`, one elsewhere; "" at the top."""
        parts = self.path.relative_to(self.root).parts[:-1]
        return "/".join(parts[: 3 if parts[:2] == ("compiler", "backends") else 2 if parts[:1] == ("compiler",) else 1])

    @property
    def capability(self) -> str:
        """The first row of `CAPABILITIES` that names it; "(none)" for a module that no row names."""
        place = self.path.relative_to(self.root).with_suffix("").as_posix()
        rows = CAPABILITIES.items()
        return next((name for name, p in rows if any(place == e or place.startswith(f"{e}/") for e in p)), "(none)")

    @property
    def root(self) -> Path:
        depth = self.name.count(".") + (self.path.name == "__init__.py")
        return self.path.parents[depth - 1]


def modules_of(root: Path) -> dict[str, Module]:
    """Every module below a package's folder, by dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def large_folders(modules: Iterable[Module]) -> dict[str, int]:
    """Folder -> its files, for folders with many files."""
    counts = Counter(str(module.path.parent.relative_to(module.root.parent)) for module in modules)
    return {folder: count for folder, count in counts.most_common() if count >= MANY_FILES}


def class_names(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Class name -> the modules that define one."""
    names = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                names[node.name].append(module.name)
    return names


def function_names(modules: Iterable[Module]) -> list[tuple[str, str]]:
    """(module, function) of every function and method."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(m.name, node.name) for m in modules for node in ast.walk(m.tree) if isinstance(node, kinds)]


def is_participle(name: str) -> bool:
    """Does a function's name begin with a participle instead of a verb or a noun?"""
    first = name.strip("_").partition("_")[0]
    return first in IRREGULAR or (len(first) > 4 and first.endswith("ed"))


def imports(module: Module, modules: Mapping[str, Module], statements: Iterable[ast.AST]) -> Iterator[str]:
    """The modules of the package that some statements of one import."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - (module.path.name == "__init__.py")
                parent = module.name.split(".")[: len(module.name.split(".")) - up]
                base = ".".join([*parent, base] if base else parent)
            for alias in node.names:
                yield from [n for n in (f"{base}.{alias.name}", base) if n in modules][:1]


def small_modules(modules: Mapping[str, Module]) -> list[str]:
    """Small modules that one other module imports."""
    importers = defaultdict(set)
    for module in modules.values():
        for name in imports(module, modules, ast.walk(module.tree)):
            importers[name].add(module.name)
    small = [m for m in modules.values() if m.path.name != "__init__.py" and m.lines <= SMALL]
    return [module.name for module in small if len(importers[module.name]) == 1]


def at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported; functions and type checkers' imports do not."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from at_import(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from at_import(getattr(node, field, ()))


def package_imports(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Package -> the packages that are imported when it is.

    Modules directly in a folder of packages are layers of their own; an `__init__` there loads its names on demand.
    """
    layers = ("", "compiler", "compiler/backends")
    unit = {name: name if module.package in layers else module.package for name, module in modules.items()}
    direct = {each: set[str]() for each in unit.values()}
    for module in modules.values():
        if module.path.name != "__init__.py" or module.package not in layers:
            names = imports(module, modules, at_import(module.tree.body))
            direct[unit[module.name]].update(unit[name] for name in names if unit[name] != unit[module.name])
    return direct


def mutual_imports(direct: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Pairs of packages that import each other directly."""
    return [(a, b) for a in sorted(direct) for b in sorted(direct[a]) if a < b and a in direct[b]]


def import_cycles(direct: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of packages that import each other, directly or through others."""
    reached = {package: set(others) for package, others in direct.items()}
    for middle in reached:
        for package in reached:
            if middle in reached[package]:
                reached[package] |= reached[middle]
    groups = {tuple(sorted(p for p in reached[q] if q in reached[p])) for q in reached}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def print_lines(title: str, groups: Mapping[str, Sequence[Module]]) -> None:
    """A table of files and lines, a row per group."""
    print(f"{title:72}{'files':>6}{'lines':>9}{'code':>9}")
    everything = [module for own in groups.values() for module in own]
    for name, own in {**groups, "together": everything}.items():
        lines, code = sum(m.lines for m in own), sum(m.code_lines for m in own)
        print(f"{name or '(top)':72}{len(own):6}{lines:9,}{code:9,}")
    print()


def print_size(modules: Iterable[Module]) -> None:
    """Lines by package and by capability, and the lines compared with the budget."""
    packages, capabilities = defaultdict[str, list[Module]](list), defaultdict[str, list[Module]](list)
    for module in modules:
        packages[module.package].append(module)
        capabilities[module.capability].append(module)
    print_lines("package", dict(sorted(packages.items())))
    rows = [*CAPABILITIES, *(capabilities.keys() - CAPABILITIES.keys())]
    print_lines("capability", {name: capabilities[name] for name in rows if name in capabilities})
    total = sum(module.lines for own in packages.values() for module in own)
    later = sum(module.lines for name in LATER for module in capabilities[name])
    print(f"budget {BUDGET:,}; {later:,} lines are of later capabilities, {total - later:,} of the others:", end=" ")
    print(f"{total - later - BUDGET:+,}\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1] / "wholestep")
    parser.add_argument("--list", action="store_true", help="name every instance of each count")
    given = parser.parse_args(arguments)
    modules = modules_of(given.root.resolve())
    print_size(modules.values())
    classes, functions = class_names(modules.values()), function_names(modules.values())
    repeated = {name: places for name, places in sorted(classes.items()) if len(places) > 1}
    participles = [f"{module}.{name}" for module, name in functions if is_participle(name)]
    folders, small, direct = large_folders(modules.values()), small_modules(modules), package_imports(modules)
    cycles, pairs = import_cycles(direct), mutual_imports(direct)
    measures: list[tuple[str, str, list[str]]] = [
        (f"folders with {MANY_FILES} files or more", str(len(folders)), [f"{f}: {n}" for f, n in folders.items()]),
        (
            "class names defined more than once",
            f"{len(repeated)} of {len(classes)} ({len(repeated) / max(1, len(classes)):.1%})",
            [f"{name}: {', '.join(places)}" for name, places in repeated.items()],
        ),
        (
            "functions named by a participle",
            f"{len(participles)} of {len(functions)} ({len(participles) / max(1, len(functions)):.1%})",
            participles,
        ),
        (f"modules of at most {SMALL} lines with one importer", str(len(small)), small),
        (
            "packages in import cycles",
            f"{sum(map(len, cycles))} of {len(direct)}, {len(pairs)} pairs",
            [*(" <-> ".join(pair) for pair in pairs), *(f"together: {', '.join(group)}" for group in cycles)],
        ),
    ]
    for what, count, instances in measures:
        print(f"{what:72}{count}")
        if given.list:
            print("".join(f"    {instance}\n" for instance in instances), end="")


if __name__ == "__main__":
    main()

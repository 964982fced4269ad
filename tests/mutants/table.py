"""Planted bugs: one-line changes of the package, and the tests of `make test` that must notice each of them.

Tests prove something only if they fail when the code is wrong.  A mutant is a piece of text that stands exactly once
below a folder (or in a file) of the package, what replaces it, and tests that must fail then: `python -m tests.mutants`
applies each to a copy of the package and runs its tests.  A text that has moved or was rewritten fails
`test_mutants.py`: write the same bug into the new text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (".py", ".c", ".h")


@dataclass(frozen=True)
class Mutant:
    """A bug: `before` becomes `after` below `where`, a path in the package; each of `tests` may notice it."""

    name: str
    where: str
    before: str
    after: str
    tests: tuple[str, ...]

    def files(self, package: Path) -> list[Path]:
        """The files that contain the text, once for every time that it occurs."""
        start = package / self.where
        paths = [start] if start.is_file() else sorted(p for p in start.rglob("*") if p.suffix in SOURCES)
        return [path for path in paths for _ in range(path.read_text(encoding="utf-8").count(self.before))]

    def apply(self, package: Path) -> None:
        (path,) = self.files(package)
        path.write_text(path.read_text(encoding="utf-8").replace(self.before, self.after), encoding="utf-8")


def _mutant(name: str, where: str, before: str, after: str, *tests: str) -> Mutant:
    return Mutant(name, where, before, after, tuple(f"tests/{test}" for test in tests))


INTERPRET = "compiler/ir/test_interpret.py"
AUTODIFF = "compiler/passes/test_autodiff.py"
MUTANTS = [
    # -- intermediate representation ------------------------------------------------------------------------------
    _mutant("matmul accepts operands that do not fit", "compiler/ir/type_rules",
            "need(k == k2, ", "need(True, ", "compiler/ir/test_types_of_ops.py"),
    _mutant("an index past the end is not clamped", "compiler/ir/semantics/values.py",
            "np.clip(index.astype(np.int64), 0, size - 1)", "np.clip(index.astype(np.int64), 0, size)", INTERPRET),
    _mutant("max starts from 0", "compiler/ir/semantics/values.py",
            "x.max(axis=a.axes, initial=lowest)", "x.max(axis=a.axes, initial=0)", INTERPRET),
    # -- passes ---------------------------------------------------------------------------------------------------
    _mutant("the derivative of cos has no sign", "compiler/passes/autodiff/pointwise.py",
            'b.neg(b.mul(g, b.unary("sin", y.inputs[0])))', 'b.mul(g, b.unary("sin", y.inputs[0]))', AUTODIFF),
    _mutant("the derivative of exp2 has no ln 2", "compiler/passes/autodiff/pointwise.py",
            "b.mul(b.scale(g, log(2)), y)", "b.mul(g, y)", AUTODIFF),
    _mutant("ties of max all get the whole gradient", "compiler/passes/autodiff/structural.py",
            "b.div(g, b.sum_axes(b.cast(winners, x.type.dtype), axes))", "g", AUTODIFF),
    _mutant("a - b is shared with b - a", "compiler/passes/simplify/cse.py",
            "if node.op in COMMUTATIVE:", "if len(inputs) == 2:", "compiler/passes/test_cse.py"),
    _mutant("an update by another state is dropped", "compiler/passes/simplify/dead_code.py",
            "node.is_state and leaf_name(node) == name", "node.is_state", "compiler/passes/test_dead_code.py"),
    # -- plan -----------------------------------------------------------------------------------------------------
    _mutant("buffers share bytes at the end of a lifetime", "compiler/plan/memory/first_fit.py",
            "first <= span_last and span_first <= last", "first < span_last and span_first < last",
            "compiler/plan/test_layout.py"),
    _mutant("a result replaces an operand that is read after it", "compiler/plan/memory/first_fit.py",
            "sum(x.buffer == old.id for x in loads(kernel))", "len(reads)",
            "compiler/plan/test_invariants.py::test_live_buffers_never_overlap"),
    _mutant("a new edge passes on direct predecessors only", "compiler/plan/fusion/reachability.py",
            "gained |= self.before[e] | self.bit[e]", "gained |= self.bit[e]",
            "compiler/plan/test_reach.py"),
    # -- backends -------------------------------------------------------------------------------------------------
    _mutant("relu turns NaN into 0", "compiler/backends/common/cstyle/language.py",
            'f"({x[0]} <= 0 ? {literal(0.0, t)} : {x[0]})"', 'f"({x[0]} > 0 ? {x[0]} : {literal(0.0, t)})"',
            "ops/test_integers.py"),
    _mutant("sigmoid of negative numbers on the CPU", "compiler/backends/cpu/native/math_f32.h",
            "return (x < 0 ? e : 1.f) / (1.f + e);", "return 1.f / (1.f + e);", "compiler/backends/cpu/test_math.py"),
    _mutant("subtraction on the CPU adds", "compiler/backends/cpu/render/language.py",
            '"sub": _wraparound_op("-")', '"sub": _wraparound_op("+")',
            "ops/test_integers.py"),
    _mutant("the remainder on a GPU has the sign of the dividend", "compiler/backends/gpu/native/device.h",
            "(r < 0) != (y < 0) ? r + y : r;", "r;", "compiler/backends/cuda/kernels/test_graphs.py"),
    _mutant("subtraction on a GPU adds", "compiler/backends/gpu/render/language.py",
            '"sub": by_kind(infix("-")', '"sub": by_kind(infix("+")', "compiler/backends/cuda/kernels/test_graphs.py"),
    # -- training -------------------------------------------------------------------------------------------------
    _mutant("Adam's second moment is of the gradient itself", "optim/algorithms/adam.py",
            '(1.0 - s["beta2"]) * g * g', '(1.0 - s["beta2"]) * g', "optim/test_optimizers.py"),
    _mutant("Adam's bias correction lacks the root", "optim/algorithms/adam.py",
            "(1.0 - beta2**t).sqrt().recip()", "(1.0 - beta2**t).recip()", "optim/test_optimizers.py"),
    _mutant("AdamW does not decay", "optim/core/base.py",
            "return (self.shrunk(s, w), g) if decoupled", "return (w, g) if decoupled", "optim/test_optimizers.py"),
    _mutant("Nesterov looks ahead from the velocity", "optim/algorithms/sgd.py",
            'return g + s["momentum"] * moved', 'return moved + s["momentum"] * moved', "optim/test_optimizers.py"),
    _mutant("gradients are clipped to twice the norm", "optim/core/gradient_transforms.py",
            "where(norm > max_norm, max_norm / norm, 1.0)", "where(norm > max_norm, 2.0 * max_norm / norm, 1.0)",
            "session/test_clipping_and_metrics.py"),
    _mutant("a cosine schedule is one step ahead", "schedules/curves.py",
            "half_cosine(part(n, v.T_max))", "half_cosine(part(n + 1.0, v.T_max))", "schedules/test_contract.py"),
    _mutant("a warmup starts at 0", "schedules/compose.py",
            "peak * (n + 1.0) / v.steps", "peak * n / v.steps", "schedules/test_contract.py"),
    _mutant("micro-batches keep the last gradient only", "steps/micro_batches.py",
            "where(self.is_first, part, state + part)", "where(self.is_first, part, part)",
            "train/test_clipping_and_accumulation.py"),
    _mutant("an accumulator divides by one step more", "accumulation.py",
            "self.data / self.accumulated_count if", "self.data / (self.accumulated_count + 1) if",
            "train/test_clipping_and_accumulation.py"),
    _mutant("a loss scale is not divided out", "steps/loss_scale.py",
            "[g * (1.0 / scale).astype(g.dtype)", "[g * (2.0 / scale).astype(g.dtype)", "session/test_loss_scale.py"),
    _mutant("F1 without its factor of 2", "metrics/confusion.py",
            "_quotient(2.0 * right, predicted + actual)", "_quotient(right, predicted + actual)",
            "metrics/test_contract.py"),
    _mutant("top k is top k + 1", "metrics/accuracy.py",
            "rows.tally(rank < self.k)", "rows.tally(rank <= self.k)", "metrics/test_contract.py"),
    _mutant("the gradient of the root of a zero error is NaN", "losses/regression.py",
            "fn.where(wrong, mean, 1.0).sqrt()", "mean.sqrt()", "losses/test_formulas.py", "losses/test_contract.py"),
    _mutant("Huber's loss has a step at delta", "losses/regression.py",
            "limit * (size - 0.5 * limit)", "limit * size - 0.5 * limit", "losses/test_contract.py"),
    _mutant("an improvement may be worse by min_delta", "callbacks",
            "value < than - self.min_delta", "value < than + self.min_delta",
            "callbacks/test_loops_and_diagnostics.py", "callbacks/test_callbacks.py"),
    # -- data and files -------------------------------------------------------------------------------------------
    _mutant("a damaged checkpoint is read", "train/checkpoint/tensors.py",
            "if checksum(folder / name) != wanted:", "if False:", "train/checkpoint/test_checkpoint.py"),
    _mutant("a damaged cache entry is loaded", "compiler/runtime/cache/content_store.py",
            "if hashlib.sha256(path.read_bytes()).hexdigest() == expected:", "if expected:",
            "compiler/runtime/test_cache.py"),
    _mutant("bytes behind an idx array are ignored", "data/files.py",
            "if len(data) != expected:", "if len(data) < expected:", "data/test_sources.py"),
    _mutant("every epoch has the order of the first", "data/order.py",
            "return epoch_order(seed, epoch, count)", "return epoch_order(seed, 0, count)", "data/test_loader.py"),
    _mutant("the last batch is lost", "data/loader.py",
            "if self.drop_last else -(-rows // self.batch_size)", "if self.drop_last else rows // self.batch_size",
            "data/test_loader.py"),
    _mutant("rows of a fold are validated in another one too", "data/splits.py",
            "np.flatnonzero(part_of == part)", "np.flatnonzero(part_of >= part)", "data/test_data_sets.py"),
]  # fmt: skip

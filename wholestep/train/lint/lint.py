"""`ws.lint`: trace a run, apply every rule, and report the findings; nothing is compiled or trained."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.step import Step
from wholestep.errors import OptionError, ShapeError, TrainingWarning, UsageError, WholestepError
from wholestep.steps.module import training_graph
from wholestep.train.data.data_spec import DataSpec
from wholestep.train.data.loaders import sample_of
from wholestep.train.lint import data_rules, model_rules, run_rules  # noqa: F401  (each registers its rules)
from wholestep.train.lint.rules import CLASSES, REFUSED, RULES, SHAPES, WARNED, Finding, LintedRun
from wholestep.train.run_limits import limited_data

if TYPE_CHECKING:
    from wholestep.train.experiment import Experiment

log = logging.getLogger("wholestep")


class LintReport(Sequence[Finding]):
    """The findings of a run, in the order of their codes; printing it explains each of them."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._findings = sorted(findings, key=lambda finding: finding.code)

    def __len__(self) -> int:
        return len(self._findings)

    def __getitem__(self, index: Any) -> Any:
        return self._findings[index]

    @property
    def codes(self) -> list[str]:
        """The code of each finding."""
        return [finding.code for finding in self._findings]

    def __str__(self) -> str:
        return "\n".join(map(str, self._findings)) or "no findings"

    __repr__ = __str__


def lint(model: Any, data: Any = None, *, silence: Iterable[str] = (), **settings: Any) -> LintReport:
    """Look for mistakes that training would not report: in a model, its data and the settings of a run.

    Nothing is compiled or trained.  `ws.fit` applies the rules that read no rows, and logs their findings.

    Args:
        model: a `ws.nn.Module`, with the data and settings of `ws.fit`; or a `ws.Experiment`.
        silence: codes that are not reported, e.g. `("WS301",)`.

    Example: `print(ws.lint(model, (x, y), loss="cross_entropy", validation=0.1))`.
    """
    from wholestep.train.experiment import Experiment

    if isinstance(model, Experiment):
        experiment = model.having(settings) if data is None else model.having({**settings, "data": data})
    else:
        experiment = Experiment(model=model, data=data, **settings)
    return lint_experiment(experiment, silence)


def lint_experiment(experiment: Experiment, silence: Iterable[str] = ()) -> LintReport:
    """The findings of every rule about an experiment."""
    unwanted = check_codes(silence)
    if isinstance(experiment.model, Step):
        raise UsageError("lint is about a ws.nn.Module with its loss; a @ws.step function records both itself.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loader, held = limited_data(experiment)
            spec = DataSpec(experiment.model, sample_of(loader), experiment.loss, experiment.nonfinite == "ignore")
            spec.check(loader)
        except WholestepError as error:
            return LintReport([Finding(RULES[REFUSED], str(error))])
        try:
            graph = training_graph(
                experiment.model, spec.inputs(), spec.targets(), experiment.loss, experiment.loss_weights
            ).to_ir()
        except WholestepError as error:
            return LintReport([Finding(RULES[SHAPES if isinstance(error, ShapeError) else REFUSED], str(error))])
        run = LintedRun(experiment, loader, held, graph, spec.table_losses())
        try:
            findings = [*apply_rules(run), *_range_findings(run, spec)]
        except WholestepError as error:  # e.g. a schedule that is longer than the run
            return LintReport([Finding(RULES[REFUSED], str(error))])
    traced = {str(w.message): w.message.code for w in caught if isinstance(w.message, TrainingWarning)}
    findings += [Finding(RULES[code or WARNED], text) for text, code in traced.items()]
    return LintReport(finding for finding in findings if finding.code not in unwanted)


def check_codes(codes: Iterable[str]) -> frozenset[str]:
    """The codes as a set; OptionError for one that no rule has."""
    chosen = frozenset([codes] if isinstance(codes, str) else codes)
    if unknown := sorted(chosen - RULES.keys()):
        raise OptionError(f"silence={unknown}: the linter has no such code. It has: {', '.join(sorted(RULES))}.")
    return chosen


def apply_rules(run: LintedRun, *, on_request: bool = True) -> Iterator[Finding]:
    """The findings of the rules; without those that run on request only if `on_request` is False."""
    for rule in RULES.values():
        if rule.check is not None and (on_request or not rule.on_request):
            yield from (Finding(rule, text) for text in rule.check(run))


def log_findings(run: LintedRun, silence: Iterable[str]) -> None:
    """Log what the quick rules find about a run that is about to start."""
    unwanted = check_codes(silence)
    for finding in apply_rules(run, on_request=False):
        if finding.code not in unwanted:
            log.warning("%s", finding)


def _range_findings(run: LintedRun, spec: DataSpec) -> Iterator[Finding]:
    """Class indices outside the range of the scores, which the checks before the first step refuse."""
    outputs = {o.name: o.node.type.shape for o in run.graph.outputs[1:]}
    for table in filter(None, (run.table, run.held)):
        try:
            spec.check_class_range(outputs, table)
        except WholestepError as error:
            yield Finding(RULES[CLASSES], str(error))

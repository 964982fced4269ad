"""The table of losses by name and alias, and `Loss`, a named loss with options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from importlib import import_module
from inspect import signature
from typing import Any

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, report_config_errors
from wholestep.errors import OptionError, UnknownNameError, UsageError
from wholestep.lazy import interop
from wholestep.records import dataclass

LossFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class LossEntry:
    """A row of the table; a non-separable loss cannot be computed from parts of a batch."""

    home: str  # "file.function"; only the file of the requested loss is imported
    aliases: tuple[str, ...]
    separable: bool = True
    takes_classes: bool = False  # may its targets be class indices?

    @property
    def function(self) -> LossFunction:
        """The function of the loss."""
        file, name = self.home.split(".")
        function: LossFunction = getattr(import_module(f"wholestep.losses.{file}"), name)
        return function


LOSSES: dict[str, LossEntry] = {
    "mse": LossEntry("regression.mse_loss", ("mse_loss", "mean_squared_error")),
    "rmse": LossEntry("regression.rmse_loss", ("rmse_loss",)),
    "mae": LossEntry("regression.mae_loss", ("mae_loss", "l1", "l1_loss", "mean_absolute_error")),
    "huber": LossEntry("regression.huber_loss", ("huber_loss",)),
    "smooth_l1": LossEntry("regression.smooth_l1_loss", ("smooth_l1_loss",)),
    "log_cosh": LossEntry("regression.log_cosh_loss", ("log_cosh_loss",)),
    "quantile": LossEntry("regression.quantile_loss", ("quantile_loss", "pinball")),
    "expectile": LossEntry("regression.expectile_loss", ("expectile_loss",)),
    "poisson_nll": LossEntry("regression.poisson_nll_loss", ("poisson_nll_loss", "poisson")),
    "gaussian_nll": LossEntry("regression.gaussian_nll_loss", ("gaussian_nll_loss", "gaussian")),
    "cross_entropy": LossEntry(
        "classification.cross_entropy", ("cross_entropy_loss", "cross_entropy_with_logits_loss"), takes_classes=True
    ),
    "kl_div": LossEntry("classification.kl_div_with_logits_loss", ("kl_div_with_logits_loss", "kl")),
    "binary_cross_entropy": LossEntry(
        "classification.binary_cross_entropy_with_logits_loss",
        ("binary_cross_entropy_with_logits_loss", "bce", "bce_with_logits"),
    ),
    "focal": LossEntry("classification.focal_loss", ("focal_loss",), takes_classes=True),
    "poly1": LossEntry("classification.poly1_loss", ("poly1_loss",), takes_classes=True),
    "hinge": LossEntry("classification.hinge_loss", ("hinge_loss",), takes_classes=True),
    "cosine_embedding": LossEntry("similarity.cosine_embedding_loss", ("cosine_embedding_loss", "cosine")),
    "dice": LossEntry("similarity.dice_loss", ("dice_loss",), separable=False, takes_classes=True),
    "tversky": LossEntry("similarity.tversky_loss", ("tversky_loss",), separable=False, takes_classes=True),
    "info_nce": LossEntry("similarity.info_nce_loss", ("info_nce_loss",), separable=False),
    "supervised_contrastive": LossEntry(
        "similarity.supervised_contrastive_loss",
        ("supervised_contrastive_loss", "sup_con"),
        separable=False,
        takes_classes=True,
    ),
    "arcface": LossEntry("similarity.arcface_loss", ("arcface_loss",), takes_classes=True),
    "distillation": LossEntry("teachers.distillation_loss", ("distillation_loss",)),
    "feature_distillation": LossEntry("teachers.feature_distillation_loss", ("feature_distillation_loss",)),
    "cox": LossEntry("survival.cox_loss", ("cox_loss", "cox_partial_likelihood"), separable=False),
    "nll": LossEntry("probabilities.nll_loss", ("nll_loss", "negative_log_likelihood"), takes_classes=True),
    "bce_of_probabilities": LossEntry("probabilities.bce_of_probabilities_loss", ("bce_of_probabilities_loss",)),
    "ctc": LossEntry("sequences.ctc_loss", ("ctc_loss",)),
    "triplet": LossEntry("distances.triplet_loss", ("triplet_loss",), separable=False, takes_classes=True),
    "contrastive": LossEntry("distances.contrastive_loss", ("contrastive_loss",)),
}
ALIASES = {alias: name for name, entry in LOSSES.items() for alias in entry.aliases}


def canonical(name: object) -> str:
    """The canonical name of a loss for a name or alias."""
    key = str(name).lower()
    full_name = ALIASES.get(key, key)
    if full_name not in LOSSES:
        from difflib import get_close_matches

        if suggestion := interop.LOSS_SUGGESTIONS.get(key):
            fail(UnknownNameError, f"there is no loss {name!r}: {suggestion}.")
        close = get_close_matches(key, [*LOSSES, *ALIASES], 3, 0.5)
        hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        fail(UnknownNameError, f"there is no loss {name!r}. {hint}There are: {', '.join(LOSSES)}.")
    return full_name


@dataclass(frozen=True, init=False)
class Loss:
    """A loss of the table with its options, for configurations; it is called like the function itself.

    Example: `ws.losses.Loss("cross_entropy", label_smoothing=0.1)(logits, labels)`.
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __init__(self, kind: str, **options: Any) -> None:
        object.__setattr__(self, "kind", canonical(kind))
        object.__setattr__(self, "options", dict(options))
        parameters = list(signature(self.function).parameters)[2:]
        for name in options:
            if name not in parameters:
                from difflib import get_close_matches

                close = get_close_matches(name, parameters, 1, 0.5)
                hint = f"Did you mean {close[0]!r}? " if close else ""
                fail(OptionError, f"{self.kind} has no option {name!r}. {hint}It has: {', '.join(parameters)}.")

    @property
    def function(self) -> LossFunction:
        """The function of the loss."""
        return LOSSES[self.kind].function

    @property
    def separable(self) -> bool:
        """Whether a batch can be split into parts; Dice and InfoNCE need the whole batch."""
        return LOSSES[self.kind].separable

    @property
    def takes_classes(self) -> bool:
        """Whether targets may be class indices."""
        return LOSSES[self.kind].takes_classes

    def __call__(self, prediction: Tensor, target: Any, sample_weight: Tensor | None = None) -> Tensor:
        if sample_weight is None:
            return self.function(prediction, target, **self.options)
        if "sample_weight" not in signature(self.function).parameters:
            fail(OptionError, f"{self.kind} sees a batch as a whole and takes no weights of rows. Leave them out.")
        return self.function(prediction, target, **self.options, sample_weight=sample_weight)

    def to_config(self) -> dict[str, Any]:
        """The loss as plain data: `{"kind": "cross_entropy", "label_smoothing": 0.1}`."""
        return {"kind": self.kind, **self.options}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Loss:
        """The loss that `to_config` described.  Example: `ws.losses.Loss.from_config({"kind": "mse"})`."""
        if "kind" not in config:
            fail(OptionError, f"the description of a loss needs a 'kind', e.g. 'mse'; received {dict(config)}.")
        with report_config_errors(config["kind"]):
            return Loss(config["kind"], **{k: v for k, v in config.items() if k != "kind"})


def get(loss: str | Mapping[str, Any] | LossFunction) -> LossFunction:
    """A loss from a name, a `to_config()`, a function or a `Loss`; the latter two are returned unchanged.

    Example: `ws.losses.get("cross_entropy")(logits, labels)`.
    """
    if isinstance(loss, str):
        return Loss(loss)
    if isinstance(loss, Mapping):
        return Loss.from_config(loss)
    if getattr(loss, "__module__", "") == "wholestep.nn.loss_modules":
        fail(UsageError, f"loss= is ws.nn.{loss.__name__} itself; make one: loss=ws.nn.{loss.__name__}().")
    if foreign := interop.suggest_replacement(loss, "ws.nn"):
        fail(UsageError, f"a loss is a name such as 'cross_entropy', or a function of ours; received {loss}. {foreign}")
    if not callable(loss):
        fail(
            UsageError,
            f"a loss is a name such as 'cross_entropy', a function of (prediction, target), a ws.losses.Loss or its "
            f"to_config(); received {loss!r}.",
        )
    return loss

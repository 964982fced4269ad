"""Regression losses: computed per element, averaged over elements."""

from __future__ import annotations

import math

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.losses.shared import Number, Target, match_target, on_arrays, option, reduce


@on_arrays
def mse_loss(
    prediction: Tensor, target: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """Mean squared error: Σ (p - t)² / n.

    Example: `ws.losses.mse_loss(x @ w, y)`.
    """
    error = prediction - match_target("mse_loss", prediction, target)
    return reduce("mse_loss", error * error, reduction, sample_weight)


@on_arrays
def rmse_loss(prediction: Tensor, target: Target, *, sample_weight: Tensor | None = None) -> Tensor:
    """Root of the mean squared error; its gradient at zero error is 0.

    Example: `ws.losses.rmse_loss(x @ w, y)`.
    """
    error = prediction - match_target("rmse_loss", prediction, target)
    mean = reduce("rmse_loss", error * error, "mean", sample_weight)
    wrong = mean > 0.0
    # The inner `where` keeps the infinite gradient of the root at 0 out of the product 0 · inf.
    return fn.where(wrong, fn.where(wrong, mean, 1.0).sqrt(), 0.0)


@on_arrays
def mae_loss(
    prediction: Tensor, target: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """Mean absolute error: Σ |p - t| / n; its gradient at zero error is 0.

    Example: `ws.losses.mae_loss(x @ w, y)`.
    """
    return reduce(
        "mae_loss", fn.abs(prediction - match_target("mae_loss", prediction, target)), reduction, sample_weight
    )


@on_arrays
def huber_loss(
    prediction: Tensor,
    target: Target,
    delta: Number = 1.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """0.5·d² where |d| < delta, else delta·(|d| - 0.5·delta), averaged over elements (Huber, 1964).

    Example: `ws.losses.huber_loss(x @ w, y, delta=2.0)`.
    """
    return reduce("huber_loss", _huber("huber_loss", prediction, target, delta)[0], reduction, sample_weight)


@on_arrays
def smooth_l1_loss(
    prediction: Tensor,
    target: Target,
    delta: Number = 1.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """huber_loss / delta: a slope of 1 for large errors.

    Example: `ws.losses.smooth_l1_loss(x @ w, y)`.
    """
    values, size = _huber("smooth_l1_loss", prediction, target, delta)
    return reduce("smooth_l1_loss", values, reduction, sample_weight) * (1.0 / size)


def _huber(loss: str, prediction: Tensor, target: Target, delta: Number) -> tuple[Tensor, Tensor]:
    limit = option(prediction, loss, "delta", delta)
    error = prediction - match_target(loss, prediction, target)
    size = fn.abs(error)
    return fn.where(size < limit, 0.5 * error * error, limit * (size - 0.5 * limit)), limit


@on_arrays
def log_cosh_loss(
    prediction: Tensor, target: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """log cosh(p - t) = |d| + log1p(exp(-2|d|)) - log 2, averaged over elements; its gradient is tanh(d).

    Example: `ws.losses.log_cosh_loss(x @ w, y)`.
    """
    size = fn.abs(prediction - match_target("log_cosh_loss", prediction, target))
    return reduce("log_cosh_loss", size + fn.log1p(fn.exp(-2.0 * size)) - math.log(2.0), reduction, sample_weight)


@on_arrays
def quantile_loss(
    prediction: Tensor,
    target: Target,
    quantile: Number = 0.5,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """max(q·d, (q - 1)·d) with d = t - p, averaged over elements: its minimum is the q-quantile (Koenker, 1978).

    At d = 0 the gradient is 0.

    Example: `ws.losses.quantile_loss(x @ w, y, quantile=0.9)`.
    """
    q = option(prediction, "quantile_loss", "quantile", quantile, 0.0, 1.0)
    error = match_target("quantile_loss", prediction, target) - prediction
    # |d|/2 + (q - 1/2)·d has the two slopes, and half their sum at 0, where |d|'s gradient is 0; the gradient of the
    # other term must be 0 there too.
    tilt = fn.where(error == 0.0, 0.0, (q - 0.5) * error)
    return reduce("quantile_loss", 0.5 * fn.abs(error) + tilt, reduction, sample_weight)


@on_arrays
def expectile_loss(
    prediction: Tensor,
    target: Target,
    expectile: Number = 0.5,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """|τ - 1[d < 0]|·d² with d = t - p, averaged over elements: its minimum is the τ-expectile (Newey and Powell,
    1987).

    Example: `ws.losses.expectile_loss(x @ w, y, expectile=0.9)`.
    """
    share = option(prediction, "expectile_loss", "expectile", expectile, 0.0, 1.0)
    error = match_target("expectile_loss", prediction, target) - prediction
    below = (error < 0.0).astype(error.dtype)
    values = (share + (1.0 - 2.0 * share) * below) * error * error
    return reduce("expectile_loss", values, reduction, sample_weight)


# Above e⁶⁴ the exponential continues as its tangent: with scores of ±1e4 the loss and its gradient are finite.
_STEEPEST = 64.0


@on_arrays
def poisson_nll_loss(
    prediction: Tensor,
    target: Target,
    log_input: bool = True,
    full: bool = False,
    eps: Number = 1e-8,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """The negative log-likelihood of counts: exp(x) - t·x, averaged over elements.

    Args:
        prediction: the logarithm x of the rate; with `log_input=False` the rate r itself, and r - t·log(r + eps).
        target: counts, as floats.
        full: add Stirling's t·log t - t + 0.5·log(2πt) for targets above 1.

    Past x = 64 the exponential continues along its tangent, so that the loss stays finite.

    Example: `ws.losses.poisson_nll_loss(x @ w, y)`.
    """
    t = match_target("poisson_nll_loss", prediction, target)
    if log_input:
        tangent = math.exp(_STEEPEST) * (prediction + (1.0 - _STEEPEST))
        rate = fn.where(prediction < _STEEPEST, fn.exp(fn.minimum(prediction, _STEEPEST)), tangent)
        values = rate - t * prediction
    else:
        small = option(prediction, "poisson_nll_loss", "eps", eps)
        values = prediction - t * fn.log(prediction + small)
    if full:
        above = fn.where(t > 1.0, t, 1.0)
        values = values + fn.where(t > 1.0, above * fn.log(above) - above + 0.5 * fn.log(2.0 * math.pi * above), 0.0)
    return reduce("poisson_nll_loss", values, reduction, sample_weight)


@on_arrays
def gaussian_nll_loss(
    prediction: Tensor,
    target: Target,
    variance: Tensor | None = None,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """0.5·(log v + (p - t)² / v), averaged over elements (Nix and Weigend, 1994).

    Args:
        prediction: the mean, where `variance` is given; else `(..., 2)`, the mean and the logarithm of the variance.
        target: numbers of the mean's shape.
        variance: of the mean's shape; clamped to at least `eps`, with the gradient passed unchanged.
        full: add 0.5·log(2π).

    Example: `ws.losses.gaussian_nll_loss(x @ w, y, variance=ws.exp(x @ w))`.
    """
    if not eps > 0:
        fail(OptionError, f"gaussian_nll_loss: eps must be above 0; received {eps!r}.")
    mean, log_variance, precision = _normal(prediction, variance, eps)
    error = mean - match_target("gaussian_nll_loss", mean, target)
    values = 0.5 * (log_variance + error * error * precision)
    if full:
        values = values + 0.5 * math.log(2.0 * math.pi)
    return reduce("gaussian_nll_loss", values, reduction, sample_weight)


def _normal(prediction: Tensor, variance: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the log-variance and the inverse variance."""
    if variance is not None:
        v = as_tensor(variance)
        if v.shape != prediction.shape:
            fail(
                ShapeError,
                f"gaussian_nll_loss: the variance has the shape of the mean, {shape_text(prediction.shape)}; received "
                f"{shape_text(v.shape)}. Expand it: variance.expand(mean.shape).",
            )
        v = _no_less_than(v, eps)
        return prediction, fn.log(v), fn.recip(v)
    if not prediction.ndim or prediction.shape[-1] != 2:
        fail(
            ShapeError,
            "gaussian_nll_loss: without variance= the prediction holds mean and log-variance along its last axis, "
            f"shape (..., 2); received {shape_text(prediction.shape)}.",
        )
    log_v = _no_less_than(prediction[..., 1], math.log(eps))
    return prediction[..., 0], log_v, fn.exp(-log_v)


def _no_less_than(x: Tensor, low: float) -> Tensor:
    """max(x, low) with gradient 1 everywhere, so that values below the bound can recover."""
    return fn.where(x > low, x, (x - fn.stop_gradient(x)) + low)

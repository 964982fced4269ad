"""A variational autoencoder: "Auto-encoding variational Bayes", Kingma and Welling 2013 (arXiv:1312.6114)."""

from __future__ import annotations

from typing import Any

import numpy as np

from wholestep.compiler.frontend.functions.primitives import exp, random_normal
from wholestep.compiler.frontend.layers.composites import by_mode
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.nn import Linear, Module, ReLU, Sequential
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.regularizers import add_loss


def vae(inputs: int = 784, latent: int = 20, hidden: int = 400, beta: float = 1.0, dtype: object = "float32") -> VAE:
    """An encoder and a decoder of one hidden layer each, as in the paper.

    Args:
        latent: the size of the latent vector of an example.
        beta: the weight of the divergence (arXiv:1804.03599).

    Example: `ws.fit(ws.models.vae(), (images, images), loss="bce", epochs=5)`.
    """
    return VAE(inputs, latent, hidden, beta, dtype)


class VAE(Module):
    """Encodes rows (batch, inputs) and returns logits of their reconstruction; adds the divergence of the latents to
    the loss.

    Both are counted for each input, so that with a loss that is a mean over inputs, such as "bce" or "mse", their sum
    is the bound of the paper divided by the number of inputs.
    """

    def __init__(self, inputs: int, latent: int, hidden: int, beta: float, dtype: object) -> None:
        positive("vae", inputs=inputs, latent=latent, hidden=hidden)
        self.inputs, self.latent, self.beta = inputs, latent, beta
        self.encoder = Sequential(Linear(inputs, hidden, dtype=dtype), ReLU())
        self.mean, self.log_variance = (Linear(hidden, latent, dtype=dtype) for _ in range(2))
        self.decoder = Sequential(Linear(latent, hidden, dtype=dtype), ReLU(), Linear(hidden, inputs, dtype=dtype))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """The logits of the reconstructed rows; `noise` is drawn unless given; predictions use the mean."""
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        add_loss(self.divergence(mean, log_variance), "divergence")
        drawn = random_normal(x, mean.shape, dtype=mean.dtype) if noise is None else noise
        logits: Tensor = self.decoder(by_mode(mean + exp(0.5 * log_variance) * drawn, mean))
        return logits

    def divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """The divergence KL(N(mean, variance) ‖ N(0, 1)) for each input (appendix B of the paper)."""
        each = -0.5 * (1.0 + log_variance - mean * mean - exp(log_variance)).sum(1)
        return each.mean() * (self.beta / self.inputs)

    def sample(self, count: int, seed: int = 0, device: str = "cpu") -> np.ndarray[Any, Any]:
        """Logits of new rows, decoded from random latent vectors.  Example: `model.sample(16)`."""
        drawn = np.random.default_rng(seed).standard_normal((count, self.latent), np.float32)
        out: np.ndarray[Any, Any] = self.decoder.predict(drawn, device=device)
        return out

"""Update rules written out in float64 NumPy, from the papers: `rule(w, g, t, memory, options) -> new w`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
Memory = dict[str, Any]
Options = dict[str, float]


def adabelief(w: Array, g: Array, t: int, memory: Memory, o: Options) -> Array:
    memory["m"] = o["beta1"] * memory.get("m", 0.0) + (1 - o["beta1"]) * g
    memory["s"] = o["beta2"] * memory.get("s", 0.0) + (1 - o["beta2"]) * (g - memory["m"]) ** 2 + o["eps"]
    m_hat, s_hat = memory["m"] / (1 - o["beta1"] ** t), memory["s"] / (1 - o["beta2"] ** t)
    return w - o["lr"] * o["weight_decay"] * w - o["lr"] * m_hat / (np.sqrt(s_hat) + o["eps"])


def yogi(w: Array, g: Array, t: int, memory: Memory, o: Options) -> Array:
    g = g + o["weight_decay"] * w
    v = memory.get("v", np.full_like(w, 0.1))
    memory["m"] = o["beta1"] * memory.get("m", 0.0) + (1 - o["beta1"]) * g
    memory["v"] = np.where(v > g**2, v - (1 - o["beta2"]) * g**2, v + (1 - o["beta2"]) * g**2)
    m_hat, v_hat = memory["m"] / (1 - o["beta1"] ** t), memory["v"] / (1 - o["beta2"] ** t)
    return w - o["lr"] * m_hat / (np.sqrt(v_hat) + o["eps"])


def adan(w: Array, g: Array, t: int, memory: Memory, o: Options) -> Array:
    d = g - memory.get("g", g)
    memory["g"] = g
    memory["m"] = o["beta1"] * memory.get("m", 0.0) + (1 - o["beta1"]) * g
    memory["v"] = o["beta2"] * memory.get("v", 0.0) + (1 - o["beta2"]) * d
    memory["n"] = o["beta3"] * memory.get("n", 0.0) + (1 - o["beta3"]) * (g + o["beta2"] * d) ** 2
    m_hat, v_hat = memory["m"] / (1 - o["beta1"] ** t), memory["v"] / (1 - o["beta2"] ** t)
    eta = o["lr"] / (np.sqrt(memory["n"] / (1 - o["beta3"] ** t)) + o["eps"])
    return (w - eta * (m_hat + o["beta2"] * v_hat)) / (1 + o["lr"] * o["weight_decay"])


def novograd(w: Array, g: Array, t: int, memory: Memory, o: Options) -> Array:
    square = np.linalg.norm(g) ** 2
    memory["v"] = square if t == 1 else o["beta2"] * memory["v"] + (1 - o["beta2"]) * square
    step = g / (np.sqrt(memory["v"]) + o["eps"]) + o["weight_decay"] * w
    memory["m"] = step if t == 1 else o["beta1"] * memory["m"] + step
    return w - o["lr"] * memory["m"]


SOAP_MAX = 32  # the largest side with a basis in the row of the table


def soap(w: Array, g: Array, t: int, memory: Memory, o: Options) -> Array:
    """The authors' steps in torch, with the identity as first bases and a QR decomposition in every update."""
    matrix = torch.tensor(g.reshape(len(g), -1) if g.ndim > 1 else g.reshape(1, -1))
    m = memory["m"] = o["beta1"] * memory.get("m", 0.0) + (1 - o["beta1"]) * matrix
    sides = [g.ndim > 1 and 1 < n <= SOAP_MAX for n in matrix.shape]
    eyes = [torch.eye(n, dtype=torch.float64) for n in matrix.shape]
    left, right = memory.get("bases", eyes)
    v = memory["v"] = o["beta2"] * memory.get("v", 0.0) + (1 - o["beta2"]) * (left.T @ matrix @ right) ** 2
    step = left @ ((left.T @ m @ right) / (v.sqrt() + o["eps"])) @ right.T
    rate = o["lr"] * (1 - o["beta2"] ** t) ** 0.5 / (1 - o["beta1"] ** t)
    bases, products = [], []
    for i, (has, one) in enumerate(zip(sides, (matrix, matrix.T), strict=True)):
        old = memory["products"][i] if "products" in memory else 0.0
        p = o["shampoo_beta"] * old + (1 - o["shampoo_beta"]) * one @ one.T
        basis = (left, right)[i]
        if has:
            q, r = torch.linalg.qr(p / p.diagonal().mean() @ basis + 1e-4 * basis)
            basis = q * r.diagonal().sign()
        bases.append(basis)
        products.append(p)
    memory["bases"], memory["products"] = bases, products
    return (w - rate * step.numpy().reshape(w.shape)) * (1 - o["lr"] * o["weight_decay"])


def adam8bit(w: Array, g: Array, t: int, memory: Memory, o: Options) -> Array:
    """AdamW in torch whose averages pass through one byte per element after each update."""
    slope = torch.tensor(g.reshape(len(g), -1) if g.ndim > 1 else g.reshape(1, -1))
    m8, v8 = (memory.get(n, torch.zeros(slope.shape, dtype=torch.uint8)) for n in ("m8", "v8"))
    m_scale, v_scale = (memory.get(n, torch.zeros(len(slope), 1, dtype=torch.float64)) for n in ("ms", "vs"))
    root, fourth = (m8.double() - 128) / 127, v8.double() / 255
    m = o["beta1"] * root * root.abs() * m_scale + (1 - o["beta1"]) * slope
    v = o["beta2"] * fourth**4 * v_scale + (1 - o["beta2"]) * slope**2
    theta = (t * 0.6180339887498949) % 1.0
    memory["ms"], memory["vs"] = m.abs().amax(1, keepdim=True), v.amax(1, keepdim=True)
    memory["m8"] = (127 * m.sign() * (m.abs() / memory["ms"]).sqrt() + 128 + theta).floor().to(torch.uint8)
    memory["v8"] = (255 * (v / memory["vs"]) ** 0.25 + theta).floor().clamp(1, 255).to(torch.uint8)
    step = m / (1 - o["beta1"] ** t) / (v.sqrt() / (1 - o["beta2"] ** t) ** 0.5 + o["eps"])
    return (1 - o["lr"] * o.get("weight_decay", 0.0)) * w - o["lr"] * step.numpy().reshape(w.shape)

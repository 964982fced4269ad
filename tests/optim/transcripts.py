"""Update rules written out in float64 NumPy, from the papers: `rule(w, g, t, memory, options) -> new w`."""

from __future__ import annotations

from typing import Any

import numpy as np

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

"""Bitwise operations on integers."""

from __future__ import annotations

from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor

__all__ = ["bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]


def bitwise_and(x: Operand, y: Operand) -> Tensor:
    """Bitwise and, as `x & y`; of bool tensors the logical and.  Example: `ws.bitwise_and(6, 3)` is 2."""
    return as_tensor(x) & y


def bitwise_or(x: Operand, y: Operand) -> Tensor:
    """Bitwise or, as `x | y`.  Example: `ws.bitwise_or(6, 3)` is 7."""
    return as_tensor(x) | y


def bitwise_xor(x: Operand, y: Operand) -> Tensor:
    """Bitwise exclusive or, as `x ^ y`.  Example: `ws.bitwise_xor(6, 3)` is 5."""
    return as_tensor(x) ^ y


def bitwise_not(x: Operand) -> Tensor:
    """Bitwise complement, as `~x`.  Example: `ws.bitwise_not(6)` is -7."""
    return ~as_tensor(x)


def left_shift(x: Operand, y: Operand) -> Tensor:
    """x · 2ʸ without the overflowing bits, as `x << y`; 0 if y is negative or not less than the number of bits.

    Example: `ws.left_shift(3, 2)` is 12.
    """
    return as_tensor(x) << y


def right_shift(x: Operand, y: Operand) -> Tensor:
    """⌊x / 2ʸ⌋, as `x >> y`; only the sign remains if y is negative or not less than the number of bits.

    Example: `ws.right_shift(12, 2)` is 3.
    """
    return as_tensor(x) >> y

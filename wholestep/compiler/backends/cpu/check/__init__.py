"""Checks that a plan is sound on the CPU: ownership, arena, layouts, and arguments of native code."""

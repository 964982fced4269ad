"""Simplification: constant folding, common subexpression and dead code elimination, inlining, loop unrolling."""

"""Passes that remove work: folding, common subexpressions, dead code, inlining, unrolling."""

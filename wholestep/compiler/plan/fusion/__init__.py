"""Operator fusion: decides which ops share a kernel."""

"""Placement analysis: how each value of a graph is distributed along one axis of the mesh.

One lattice for data parallelism, tensor parallelism and separability, as in GSPMD (arXiv:2105.04663): `Replicated`,
`Sharded` along an axis, or `Partial` (the values of the ranks add up to the full value).  `SumOfRatios` (a weighted sum
of means over the batch) occurs in losses only.  `Mixed` is anything else, with the node to blame and the reason.

Each op has one rule: the placements of its operands -> the placement of its result.  It is used along both mesh axes.
"""

"""Placement analysis along the data axis: how each value of a graph depends on the rows of the batch.

A forward data-flow analysis over a lattice of five placements: `Replicated` (independent of the batch), `BatchSharded`
(row i depends on row i of the inputs only), `Partial` (a sum over rows: the values of the parts of a batch add up to
the value of the full batch), `SumOfRatios` (a weighted sum of means over the batch, allowed for a loss only), or
`Mixed`: anything else, with the node to blame and the reason.
"""

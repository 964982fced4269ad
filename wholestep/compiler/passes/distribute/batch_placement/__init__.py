"""How each node of a graph depends on the rows of the batch.

A data-flow analysis with five answers: a node is *free* of the batch, has *rows* that each depend on the same row of
the inputs, is *additive* (a sum over the rows, so that the values of the parts of a batch add up to the value of the
whole), is *whole* (a weighted sum of means over the batch: what a loss may be, and nothing inside it), or is *mixed*:
anything else, with the node and the reason that made it so.
"""

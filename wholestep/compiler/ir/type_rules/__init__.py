"""Type inference: the shape and dtype of each op's result, and the error if its operands do not fit."""

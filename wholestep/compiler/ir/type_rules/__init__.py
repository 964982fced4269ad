"""Type rules: the shape and dtype of each op's result, and the error where its operands do not fit."""

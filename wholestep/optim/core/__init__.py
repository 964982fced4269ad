"""The common parts of all optimizers: the base class, parameter groups, options."""

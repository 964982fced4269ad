"""What all optimizers share: the description, parameter groups, options."""

"""Self-verified plans: a new plan runs once against the interpreter."""

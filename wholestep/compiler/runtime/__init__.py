"""What every backend shares: caches, states, memory of the host."""

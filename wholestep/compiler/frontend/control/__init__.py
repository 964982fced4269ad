"""Functions with nested graphs: loops (scan), custom gradients, and replay of recorded graphs."""

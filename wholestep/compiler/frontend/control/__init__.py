"""Functions that hold graphs of their own: loops, custom gradients, recorded graphs."""

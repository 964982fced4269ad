"""C loops of convolutions, pools and their gradients."""

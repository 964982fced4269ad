"""Several runs of one experiment, with different seeds, settings or training rows."""

"""Several runs of one experiment: with other seeds, settings or rows."""

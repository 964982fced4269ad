"""Loading and launching plans on a GPU."""

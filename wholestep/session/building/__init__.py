"""Building sessions: planning, placement, memory budget."""

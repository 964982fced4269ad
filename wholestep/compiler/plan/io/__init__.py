"""Plans as files and as reports."""

"""What each ATen op records, by family."""

"""Form and grid of every kernel body, one module per subject; `choose.py` has the table."""

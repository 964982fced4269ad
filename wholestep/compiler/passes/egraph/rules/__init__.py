"""The laws of the e-graph, one row per law: rule_set.py lists them all, a file per family holds the rows."""

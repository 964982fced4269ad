"""Reference semantics: what each op computes, in float64 NumPy; the oracle that all later stages are tested against."""

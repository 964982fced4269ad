"""What each op computes, in float64 NumPy: the oracle for every stage below."""

"""Tables of PyTorch's names: each with our name of the same meaning, or a sentence that says what to write."""

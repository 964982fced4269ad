"""Tables of PyTorch's names: the name here that means the same, or a sentence that says what to write."""

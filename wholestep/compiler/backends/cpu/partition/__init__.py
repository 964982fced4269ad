"""Which axis of each kernel threads share, and where they meet."""

"""From source text to a loaded program: cache, compiler, native library, launches."""

"""The CPU backend: scheduling, C source generation, the native library, and programs that run in this process."""

"""The CPU: scheduling, C, the native library, and programs in this process."""

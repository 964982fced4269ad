"""The runtime that all backends share: caches, state, host memory, process groups."""

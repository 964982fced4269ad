"""Looking at a session: times of kernels, traces for viewers, the C that runs, statistics."""

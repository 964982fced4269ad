"""Thread partitioning: the axis of each kernel that is divided among the threads, and where barriers are needed."""

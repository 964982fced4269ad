"""Several ranks that train one model together: engines, launching, and what they cost."""

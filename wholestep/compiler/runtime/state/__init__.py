"""Persistent state: weights, optimizer moments and counters that outlive a step."""

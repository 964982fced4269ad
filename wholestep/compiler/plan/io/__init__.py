"""Serialization of plans, reports about them, and their memory traffic."""

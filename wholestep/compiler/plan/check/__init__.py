"""Verification of plans, before code is generated from them."""

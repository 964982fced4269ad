"""Devices, a folder or a file each: what `compiler/backend.py` describes."""

"""The device backends, one folder or file each; `compiler/backend.py` defines their interface."""

"""A session as a folder that trains without Python: `session.export`."""

"""Is a plan sound?  Checked before it is rendered."""

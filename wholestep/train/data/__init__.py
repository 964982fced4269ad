"""Data on its way into a run: its description, loaders, targets, class weights."""

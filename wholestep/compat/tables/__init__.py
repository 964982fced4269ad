"""Their words and ours, as data alone: names and arguments are taken by it, errors answered, and a page written."""

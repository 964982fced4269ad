"""Starting ranks on this machine, over ssh or under Ray; how ranks connect to and authenticate each other."""

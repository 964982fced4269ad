"""Starting ranks: on this machine, over ssh, under Ray; how they meet and authenticate each other."""

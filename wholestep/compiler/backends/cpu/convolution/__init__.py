"""How convolutions, pools and their adjoints run: frames, taps, tiles, and the workspace that this takes."""

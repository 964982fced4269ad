"""A script for `wholestep launch` in tests/distributed: runs its argument."""

import sys

exec(sys.argv[1])

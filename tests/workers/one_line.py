"""A script for `wholestep launch` in tests/workers: runs its argument."""

import sys

exec(sys.argv[1])

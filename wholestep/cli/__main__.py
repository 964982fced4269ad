"""`python -m wholestep.cli`"""

from wholestep.cli import main

main()

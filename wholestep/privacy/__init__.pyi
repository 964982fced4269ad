# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.privacy.settings import Privacy as Privacy
from wholestep.privacy.accountant import (
    Phase as Phase, epsilon_of as epsilon_of, noise_for as noise_for, renyi_divergence as renyi_divergence,
)

"""Helper modules shared between test folders: `import oracles`, `from random_graphs import graphs`."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent

for _folder in (_HERE, _HERE / "compiler" / "ir"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

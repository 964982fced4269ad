"""The optimal choice by integer programming: an oracle for extraction on small e-graphs.

Variables: is e-node n chosen, is it chosen and read more than once, is class c live, and the level of c, which forbids
cycles.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from wholestep.compiler.passes.egraph.cost import Cost
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode


def optimal_cost(egraph: EGraph, cost: Callable[[ENode], Cost]) -> float:
    """The least cost of any choice without cycles."""
    nodes = [n for c, members in enumerate(egraph.classes) for n in members if c not in n.children]
    index = {n: i for i, n in enumerate(nodes)}
    classes = len(egraph.classes)
    stored = len(nodes)  # stored[n]: n is chosen and its class has a second reader
    live, level = 2 * len(nodes), 2 * len(nodes) + classes
    rows: list[tuple[dict[int, float], float]] = []  # Σ coefficient·variable >= bound
    for c, members in enumerate(egraph.classes):
        usable = [n for n in members if n in index]
        rows.append(({**{index[n]: 1.0 for n in usable}, live + c: -1.0}, 0.0))
        readers = {index[n]: -1.0 for n in nodes if c in n.children}
        roots = egraph.roots.count(c)
        if readers or roots:
            most = len(readers) + roots
            big = float(most)
            rows += [  # big·stored >= readers + roots - 1, where n is chosen
                ({**readers, stored + index[n]: big, index[n]: -big}, roots - 1.0 - big) for n in usable
            ]
    for n in nodes:
        for child in set(n.children):
            rows.append(({live + child: 1.0, index[n]: -1.0}, 0.0))
            own = egraph.class_of[n]
            rows.append(({level + own: 1.0, level + child: -1.0, index[n]: -float(classes)}, 1.0 - classes))
    count = level + classes
    matrix = lil_matrix((len(rows), count))
    for r, (coefficients, _) in enumerate(rows):
        for v, x in coefficients.items():
            matrix[r, v] += x
    objective = np.zeros(count)
    for n, i in index.items():
        objective[i], objective[stored + i] = cost(n).work, cost(n).stored
    lower, upper = np.zeros(count), np.ones(count)
    upper[level:] = classes
    for root in egraph.roots:
        lower[live + root] = 1.0
    integral = np.zeros(count)
    integral[:live] = 1
    result = milp(
        objective,
        constraints=LinearConstraint(matrix.tocsr(), np.array([b for _, b in rows]), np.inf),
        bounds=Bounds(lower, upper),
        integrality=integral,
    )
    assert result.success, result.message
    return float(result.fun)

"""What tests plan and compile for, unless they say otherwise: this machine's CPU."""

from __future__ import annotations

from functools import partial

from wholestep.compiler.backends.cpu import compiler, library, schedule
from wholestep.compiler.backends.cpu.target import detect_target
from wholestep.compiler.passes.egraph import optimize as egraph

HERE = detect_target()
COSTS = HERE.costs

make_plan = partial(schedule.make_plan, target=HERE)
optimize = partial(egraph.optimize, costs=COSTS)
compile_c = partial(compiler.compile_c, target=HERE.name)
load_library = partial(library.load_library, HERE.name)

# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.

from wholestep.compiler.spans import OptimizeReport as OptimizeReport
from wholestep.session.session import Session as Session
from wholestep.session.running.entry_point import StepResult as StepResult
from wholestep.session.building.build import (
    build_inference_session as build_inference_session, build_session as build_session,
    build_session_unoptimized as build_session_unoptimized, build_session_with_report as build_session_with_report,
    compile_training_graph as compile_training_graph, estimate as estimate,
)
from wholestep.session.inspect.estimate import StepEstimate as StepEstimate
from wholestep.session.running.array_gradients import compute_gradients as compute_gradients
from wholestep.session.building.plan_files import (
    build_session_cached as build_session_cached, load_plan as load_plan, save_plan as save_plan,
)
from wholestep.interop.ancestors import ExecutionPlan as ExecutionPlan

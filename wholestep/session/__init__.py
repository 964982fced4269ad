"""Sessions: building them, running them, reading what they computed."""

from wholestep.compiler.plan.kernel import Plan as ExecutionPlan
from wholestep.compiler.spans import OptimizeReport
from wholestep.session.build import (
    build_inference_session,
    build_session,
    build_session_unoptimized,
    build_session_with_report,
    compile_training_graph,
    estimate,
)
from wholestep.session.plan_files import build_session_cached, load_plan, save_plan
from wholestep.session.results import StepResult
from wholestep.session.session import Session

__all__ = [
    "ExecutionPlan",
    "OptimizeReport",
    "Session",
    "StepResult",
    "build_inference_session",
    "build_session",
    "build_session_cached",
    "build_session_unoptimized",
    "build_session_with_report",
    "compile_training_graph",
    "estimate",
    "load_plan",
    "save_plan",
]

"""Does a schedule fit the run that follows it?"""

from __future__ import annotations

from wholestep.schedules.base import Schedule

NEAR = 0.1  # a horizon that differs from the run by less than this part of it, or by one, is taken as meant
SEVERAL = {"step": "steps", "epoch": "epochs"}


def ended(schedule: Schedule, done: int, unit: str) -> str:
    """What is odd about a schedule that has ended before a resumed run begins; "" before its end."""
    ends, several = schedule.horizon, SEVERAL[unit]
    if ends is None or not done or done < ends:
        return ""
    return (
        f"{type(schedule).__name__} by {unit}, has ended: it is {ends:g} {several} long, this run begins after {done} "
        f"and trains with {schedule(done):.4g} throughout. A resumed run keeps its schedule; to train further with "
        "another one, start a new run from the weights: model.load('runs/name'), then ws.fit(model, ..., schedule=...)."
    )


def unlike(schedule: Schedule, run: int, unit: str) -> str:
    """What is odd about a schedule, counted in `unit`, of a run that has so many of them; "" where nothing is."""
    ends, far, several = schedule.horizon, max(1.0, NEAR * run), SEVERAL[unit]
    if ends is not None and ends < run - far:
        odd = f"ends after {ends:g} {several}, the run has {run}: {schedule(ends):.4g} holds from there on"
    elif schedule.reach is not None and schedule.reach > run + far:
        odd = f"goes on for {schedule.reach:g} {several}, the run has {run}"
    else:
        return ""
    other = "step" if unit == "epoch" else "epoch"
    return (
        f"{type(schedule).__name__} by {unit}, {odd}. Give it the length of the run, or unit={other!r} if "
        f"{SEVERAL[other]} were meant."
    )

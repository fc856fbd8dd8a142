"""Where each node runs, and why: `schedule(graph, backends) -> Schedule`."""

from weft.schedule.optimize import optimize_splits
from weft.schedule.policy import schedule
from weft.schedule.result import Schedule, Split
from weft.schedule.state import PlannerState

__all__ = ["PlannerState", "Schedule", "Split", "optimize_splits", "schedule"]

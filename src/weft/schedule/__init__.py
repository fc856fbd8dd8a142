"""Where each node runs, and why: `schedule(graph, backends) -> Schedule`."""

from weft.schedule.cost import CostOptions
from weft.schedule.listing import listing, print_listing
from weft.schedule.optimize import optimize_splits
from weft.schedule.policy import Policy, schedule
from weft.schedule.profile import Profile, load_profile
from weft.schedule.result import Schedule, Split
from weft.schedule.state import PlannerState
from weft.schedule.timing import Point, TimeModel

__all__ = [
    "CostOptions",
    "PlannerState",
    "Point",
    "Policy",
    "Profile",
    "Schedule",
    "Split",
    "TimeModel",
    "listing",
    "load_profile",
    "optimize_splits",
    "print_listing",
    "schedule",
]

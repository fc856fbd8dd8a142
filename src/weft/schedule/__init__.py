"""The device of each node and the reason for it: `schedule(graph, backends) -> Schedule`.

`weft.schedule.passes.passes_of(schedule)` shows step by step how it came about."""

from weft.schedule.cause import Cause
from weft.schedule.cost import CostOptions
from weft.schedule.describe import Placed
from weft.schedule.devices import Devices
from weft.schedule.explain import listing, print_listing
from weft.schedule.offload import OffloadRule, OpOffload, OpOffloadLike
from weft.schedule.optimize import optimize_splits
from weft.schedule.parts import Asked, Candidate, Prediction, Role
from weft.schedule.policy import Policy, schedule
from weft.schedule.profile import DeviceProfile, LinkProfile, MemoryProfile, Profile, load_profile
from weft.schedule.result import PlannerState, Schedule, Split
from weft.schedule.timing import Point, TimeModel

__all__ = [
    "Asked",
    "Candidate",
    "Cause",
    "CostOptions",
    "DeviceProfile",
    "Devices",
    "LinkProfile",
    "MemoryProfile",
    "OffloadRule",
    "OpOffload",
    "OpOffloadLike",
    "Placed",
    "PlannerState",
    "Point",
    "Policy",
    "Prediction",
    "Profile",
    "Role",
    "Schedule",
    "Split",
    "TimeModel",
    "listing",
    "load_profile",
    "optimize_splits",
    "print_listing",
    "schedule",
]

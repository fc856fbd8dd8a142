"""Running programs: `Session` binds one program, `Scheduler` drives graph after graph."""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.execute.arena import ArenaPool, Progress, arena_bytes
    from weft.execute.bound import BoundProgram, Moved
    from weft.execute.devices import Fault, Run
    from weft.execute.memory_plan import SchedulerCounters
    from weft.execute.pipeline import Pipeline, stage_work
    from weft.execute.profile import Line, Profile
    from weft.execute.profile_trace import Group, Slice, Trace
    from weft.execute.scheduler import AbortCallback, EvalCallback, Scheduler
    from weft.execute.session import Session, State
    from weft.execute.tasks import StepTasks, Tasks
    from weft.execute.watch import Reader, TensorCallback, WatchedSession, WatchedTensor

__all__ = [
    "AbortCallback",
    "ArenaPool",
    "BoundProgram",
    "EvalCallback",
    "Fault",
    "Group",
    "Line",
    "Moved",
    "Pipeline",
    "Profile",
    "Progress",
    "Reader",
    "Run",
    "Scheduler",
    "SchedulerCounters",
    "Session",
    "Slice",
    "State",
    "StepTasks",
    "Tasks",
    "TensorCallback",
    "Trace",
    "WatchedSession",
    "WatchedTensor",
    "arena_bytes",
    "stage_work",
]

_HOMES = {
    "weft.execute.arena": ("ArenaPool", "Progress", "arena_bytes"),
    "weft.execute.bound": ("BoundProgram", "Moved"),
    "weft.execute.devices": ("Fault", "Run"),
    "weft.execute.memory_plan": ("SchedulerCounters",),
    "weft.execute.pipeline": ("Pipeline", "stage_work"),
    "weft.execute.profile": ("Line", "Profile"),
    "weft.execute.profile_trace": ("Group", "Slice", "Trace"),
    "weft.execute.scheduler": ("AbortCallback", "EvalCallback", "Scheduler"),
    "weft.execute.session": ("Session", "State"),
    "weft.execute.tasks": ("StepTasks", "Tasks"),
    "weft.execute.watch": ("Reader", "TensorCallback", "WatchedSession", "WatchedTensor"),
}
__getattr__, __dir__ = imported_when_used(__name__, _HOMES)

"""Running programs: `Session` binds one program, `Scheduler` drives graph after graph."""

from weft.execute.arena import ArenaPool, Progress, arena_bytes
from weft.execute.bound import BoundProgram, Moved
from weft.execute.graph_plans import SchedulerCounters
from weft.execute.pipeline import Pipeline
from weft.execute.profile import Line, Profile
from weft.execute.profile_trace import Trace
from weft.execute.run import Fault, Run
from weft.execute.scheduler import AbortCallback, EvalCallback, Scheduler
from weft.execute.session import Session
from weft.execute.spans import Group
from weft.execute.state import State
from weft.execute.watch import TensorCallback, WatchedSession, WatchedTensor

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
    "Run",
    "Scheduler",
    "SchedulerCounters",
    "Session",
    "State",
    "TensorCallback",
    "Trace",
    "WatchedSession",
    "WatchedTensor",
    "arena_bytes",
]

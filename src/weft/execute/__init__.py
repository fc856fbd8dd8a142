"""Running programs: `Session` binds one program, `Scheduler` drives graph after graph."""

from weft.execute.arena import ArenaPool, Progress, arena_bytes
from weft.execute.pipeline import Pipeline
from weft.execute.profile import Line, Profile
from weft.execute.profile_trace import Trace
from weft.execute.run import Run
from weft.execute.scheduler import AbortCallback, EvalCallback, Scheduler
from weft.execute.session import Session
from weft.execute.watch import TensorCallback, WatchedSession, WatchedTensor

__all__ = [
    "AbortCallback",
    "ArenaPool",
    "EvalCallback",
    "Line",
    "Pipeline",
    "Profile",
    "Progress",
    "Run",
    "Scheduler",
    "Session",
    "TensorCallback",
    "Trace",
    "WatchedSession",
    "WatchedTensor",
    "arena_bytes",
]

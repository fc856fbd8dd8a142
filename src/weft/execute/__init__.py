"""Running programs: `Session` binds one program, `Scheduler` drives graph after graph."""

from weft.execute.arena import ArenaPool, Progress, arena_bytes
from weft.execute.run import Run
from weft.execute.scheduler import AbortCallback, EvalCallback, Scheduler
from weft.execute.session import Session

__all__ = [
    "AbortCallback",
    "ArenaPool",
    "EvalCallback",
    "Progress",
    "Run",
    "Scheduler",
    "Session",
    "arena_bytes",
]

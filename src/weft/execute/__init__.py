"""Running programs: `Session` owns the arenas and binds inputs and outputs."""

from weft.execute.arena import ArenaPool
from weft.execute.session import Session

__all__ = ["ArenaPool", "Session"]

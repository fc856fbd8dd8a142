"""The bounds of what libraries compute for a stranger: the place that says how much of it may be.

docs/security.md lists them. A request that exceeds one is refused with a message that names it.
"""

from __future__ import annotations

__all__ = [
    "CONSTRAINTS_AT_ONCE",
    "CONSTRAINT_BYTES",
    "CONSTRAINT_CPU_SECONDS",
    "CONSTRAINT_MEMORY",
    "CONSTRAINT_SECONDS",
]

CONSTRAINT_BYTES = 1 << 20
"""Most bytes of a grammar, a JSON schema or a regular expression."""
CONSTRAINT_CPU_SECONDS = 2
"""Seconds of a processor that a constraint may take to compile, in a process of its own."""
CONSTRAINT_SECONDS = 10.0
"""Seconds that a constraint may take to compile, with the time in which it waits for others."""
CONSTRAINT_MEMORY = 1 << 30
"""Most bytes of the address space of the process that compiles constraints."""
CONSTRAINTS_AT_ONCE = 2
"""Most processes that compile constraints; further ones wait."""

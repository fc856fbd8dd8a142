"""The bounds of what libraries compute for a stranger: the place that says how much of it may be.

docs/security.md lists them. A request that exceeds one is refused with a message that names it.
"""

from __future__ import annotations

__all__ = [
    "CHUNKS",
    "CHUNK_BYTES",
    "CONSTRAINTS_AT_ONCE",
    "CONSTRAINT_BYTES",
    "CONSTRAINT_CPU_SECONDS",
    "CONSTRAINT_MEMORY",
    "CONSTRAINT_SECONDS",
    "DECODED_AT_ONCE",
    "DECODED_OF_REQUEST",
    "DECODINGS_WAITING",
    "DECODING_SECONDS",
    "JPEG_PIXELS",
    "MEDIA_BYTES",
    "PIXELS",
    "SAMPLES",
    "TEMPLATE_UNITS",
    "TEMPLATE_UNITS_OF_INPUT",
]

CHUNKS = 8192
"""Most chunks of a chunked body, whatever their size."""
CHUNK_BYTES = 128
"""A body may have one more chunk for every so many bytes that it has."""
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

MEDIA_BYTES = 64 << 20
"""Most bytes of a file of an image or a sound."""
PIXELS = 1 << 25
"""Most pixels of an image that are decoded: several times what any tower sees of one."""
JPEG_PIXELS = 1 << 27
"""Most pixels of a JPEG; one of more than `PIXELS` is decoded at a half, a quarter or an eighth."""
SAMPLES = 1 << 26
"""Most samples of a channel of a sound, at its own rate and at that of the tower: 23 minutes at 48
kHz, 69 at 16 kHz."""
DECODED_AT_ONCE = 1 << 26
"""Most pixels and samples that are decoded at a time; what comes next waits."""
DECODED_OF_REQUEST = 1 << 27
"""Most pixels and samples of all images and sounds of a request."""
DECODINGS_WAITING = 8
"""Most requests that wait until theirs are decoded."""
DECODING_SECONDS = 10.0
"""Seconds that they wait."""

TEMPLATE_UNITS = 1 << 26
"""Units of work that a chat template may take for any conversation: characters, and 16 a step."""
TEMPLATE_UNITS_OF_INPUT = 64
"""Units more for each character of the conversation."""

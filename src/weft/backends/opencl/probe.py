"""Whether a device can build and run a kernel, tried in a process of its own.

Broken installations do not only report errors: compilers end the process, or never return. A file
in the user's cache folder keeps the answer; after a refusal, the device is tried again a day
later.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from weft.backends.kernels import cache
from weft.backends.kernels.cache import keep, kept

_SECONDS = 60
_DAY = 24 * 3600.0

_SCRIPT = """
import sys
import pyopencl as cl
device = cl.get_platforms()[int(sys.argv[1])].get_devices()[int(sys.argv[2])]
context = cl.Context([device])
queue = cl.CommandQueue(context)
source = "__kernel void f(__global float *x) { x[get_global_id(0)] = get_global_id(0) * 2.0f; }"
program = cl.Program(context, source).build(cache_dir=False)
buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
kernel = cl.Kernel(program, "f")
kernel.set_arg(0, buffer)
cl.enqueue_nd_range_kernel(queue, kernel, (16,), (4,))
out = bytearray(64)
cl.enqueue_copy(queue, out, buffer)
import struct
assert struct.unpack("<16f", out) == tuple(2.0 * i for i in range(16)), "wrong results"
"""


def why_unusable(platform: int, device: int, key: str) -> str:
    """Empty, or a sentence about the fault of the device with these numbers.

    `key` names device and driver, so that another driver is tried again."""
    path = cache_folder() / "probed.json"
    answers = _read(path)
    answer = answers.get(key)
    if isinstance(answer, dict) and isinstance(answer.get("time"), float):
        why = str(answer.get("why"))
        if not why or time.time() - answer["time"] < _DAY:
            return why
    why = _ask(platform, device)
    answers[key] = {"why": why, "time": time.time()}
    keep(path, json.dumps(answers, indent=1).encode())
    return why


def cache_folder() -> Path:
    """The folder in which this backend keeps files between runs."""
    return cache.cache_folder("opencl")


def _ask(platform: int, device: int) -> str:
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT, str(platform), str(device)]
    try:
        process = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"its compiler did not finish a kernel of one line in {_SECONDS} s"
    except OSError as error:
        return f"no process could be started to try it ({error})"
    if process.returncode == 0:
        return ""
    output = process.stderr.decode(errors="replace").strip().splitlines()
    last = _telling(output)
    if process.returncode < 0:
        return f"building a kernel ended the process (signal {-process.returncode}){last}"
    return f"it cannot build and run a kernel{last}"


def _telling(lines: list[str]) -> str:
    """The most useful line: the compiler's own error, else the last."""
    for line in lines:
        if "error:" in line.lower():
            return f": {line.strip()}"
    return f": {lines[-1].strip()}" if lines else ""


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        answers = json.loads(kept(path))
    except (ValueError, RecursionError):
        return {}
    return answers if isinstance(answers, dict) else {}

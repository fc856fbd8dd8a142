"""A module whose kernel of products does nothing, which `weft doctor` has to notice."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

RETURN = bytes.fromhex("c0035fd6")  # the instruction RET


def empty_products(module: Path, target: str) -> bytes:
    """The bytes of `module` with a return at the start of the target's function for products;
    raises SystemExit where it is not found."""
    symbols = _said("aarch64-linux-gnu-nm", "-C", str(module))
    found = re.search(rf"^([0-9a-f]+) \S weft::{target}::multiply\(", symbols, re.MULTILINE)
    headers = _said("aarch64-linux-gnu-readelf", "-SW", str(module))
    text = re.search(r" \.text +PROGBITS +([0-9a-f]+) ([0-9a-f]+) ", headers)
    if found is None or text is None:
        raise SystemExit(f"{module} has no symbol of {target}'s products")
    address, offset = (int(text[i], 16) for i in (1, 2))
    at = int(found[1], 16) - address + offset
    code = module.read_bytes()
    return code[:at] + RETURN + code[at + len(RETURN) :]


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

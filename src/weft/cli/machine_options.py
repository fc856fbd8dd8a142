"""The options that name other machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import ContextError
from weft.flags import FLAGS
from weft.links.addresses import parse_address
from weft.options import DEVICES, option

MACHINE_OPTIONS = {
    "ray": option(
        None,
        "Starts a worker on every other node of a Ray cluster, and uses them as --machines does; "
        "auto: the cluster of RAY_ADDRESS or this machine.", panel=DEVICES, metavar="[ADDRESS]",
    ),
    "machine_key_file": option(
        None, "File with the key that machines share (`weft worker --make-key`). Default: the "
        "value of WEFT_MACHINE_KEY.", "--machine-key-file --key-file", DEVICES, "FILE",
    ),
}  # fmt: skip


_WORKER = re.compile(r"[\w.\-]+:\d{1,5}")
COMMAS = "write commas between the workers of --machines"


def is_worker(text: str) -> bool:
    """Whether a text is written as HOST:PORT, as the workers of `--machines` are."""
    return _WORKER.fullmatch(text) is not None


def machine_key(file: Path | None) -> bytes | None:
    """The key in a file, else in WEFT_MACHINE_KEY; None where there is neither."""
    from weft.links.keys import key_from_text, read_key

    if file is not None:
        return read_key(file)
    return key_from_text(FLAGS.machine_key, "WEFT_MACHINE_KEY") if FLAGS.machine_key else None


def are_addresses(machines: Sequence[str]) -> bool:
    """Whether `--machines` of `weft explain` names workers, and not files."""
    from weft.schedule.profile import shipped_profiles

    shipped = shipped_profiles()
    names = [name for text in machines for name in text.split(",")]
    return not any(name.endswith(".toml") or name in shipped for name in names)


def machines_of(
    text: str | None, ray: str | None, key_file: Path | None, key: bytes | None = None
) -> dict[str, Any]:
    """The arguments of `LLM` for `--machines`, `--ray` and the key; none where none is given.

    Raises ContextError for both, and ArgumentError for an address that is none."""
    if text is not None and ray is not None:
        raise ContextError("give --machines or --ray, not both")
    if ray is not None:
        return {"machines": "ray" if ray in ("", "auto") else f"ray:{ray}"}
    if text is None:
        return {} if key_file is None else {"machine_key": machine_key(key_file)}
    if text.partition(":")[0] == "ray":
        return {"machines": text}
    if not are_addresses([text]):
        raise ContextError(
            f"--machines {text[:80]} is a machine profile, with which `weft explain` plans; to run "
            "a model give the HOST:PORT of workers"
        )
    for name in text.split(","):
        parse_address(name, "--machines", port=7333)
    return {"machines": text, "machine_key": key or machine_key(key_file)}

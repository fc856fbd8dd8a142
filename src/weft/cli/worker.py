"""`weft worker` lends the devices of this machine to weft on other machines."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from weft.cli.command import usage_error
from weft.cli.console import chosen_devices, say
from weft.cli.groups import Group, grouped
from weft.cli.machine_options import MACHINE_OPTIONS, machine_key
from weft.links.addresses import Address, parse_address
from weft.options import option
from weft.schedule.profile import parse_size

PORT = 7333
"""The port of workers where --listen names none."""


class WorkerFlags(Group):
    """The options of `weft worker`."""

    table = MACHINE_OPTIONS
    listen: str = option(
        f'127.0.0.1:{PORT}',
        "Address to listen on; 0.0.0.0 is every network of this machine, and needs a key. Port 0 "
        "takes a free one.", metavar="HOST:PORT",
    )  # fmt: skip
    machine_key_file: Path | None
    make_key: Path | None = option(
        None, "Write a new key to FILE, and do nothing else.", metavar="FILE"
    )
    devices: str | None = option(None, "Devices to lend; default: cpu.", metavar="NAMES")
    model_dir: list[Path] | None = option(
        None, "Folder with model files, which are used instead of being sent; repeatable.",
        metavar="FOLDER",
    )  # fmt: skip
    cache_dir: Path | None = option(
        None, "Folder that keeps weights which were sent; default: in weft's cache folder.",
        metavar="FOLDER",
    )  # fmt: skip
    memory: int | None = option(
        None, "Most memory that clients may use, e.g. 24G.", metavar="SIZE", read=parse_size
    )
    restart: bool = option(
        True, "Start again, on the same port, after a crash.", "--restart/--no-restart"
    )
    serve_socket: int | None = option(None, "", hidden=True)


@grouped
def worker(own: WorkerFlags) -> None:
    """Lend the devices of this machine to weft on other machines: `weft run MODEL --machines
    HOST:PORT` uses them. Both sides run the same weft and know one key."""
    from weft.links.keys import write_key

    if own.make_key is not None:
        write_key(own.make_key)
        say(f"wrote a new key to {own.make_key}; copy it to every machine")
        return
    at = parse_address(own.listen, "--listen", port=PORT)
    key = machine_key(own.machine_key_file)
    lent = ["cpu"] if own.devices is None else chosen_devices(own.devices)
    if own.serve_socket is not None:
        _serve(socket.socket(fileno=own.serve_socket), at.host, key, lent, own)
        return
    _require_key(at, key)
    from weft.links.ends import bound_socket

    sock = bound_socket(at)
    say(
        f"lends {', '.join(lent)} on {Address(at.host, int(sock.getsockname()[1]))} "
        f"({'to whoever has the key' if key else 'to processes of this machine'}, process "
        f"{os.getpid()}); Ctrl-C ends it"
    )
    if not own.restart or os.name != "posix":
        _serve(sock, at.host, key, lent, own)
        return
    from weft.cluster.running import supervise

    supervise(sock, _again(at, lent, own), say)


def _require_key(at: Address, key: bytes | None) -> None:
    from weft.links.addresses import is_loopback

    if key is None and not is_loopback(at.host):
        raise usage_error(
            f"--listen {at} can be reached from other machines and needs a key: make one with "
            "`weft worker --make-key FILE`, and give it with --machine-key-file FILE"
        )


def _again(at: Address, lent: list[str], own: WorkerFlags) -> list[str]:
    """The arguments of the process that serves, but for its socket."""
    given = ["--listen", str(at), "--devices", ",".join(lent)]
    for flag, value in (
        ("--machine-key-file", own.machine_key_file), ("--cache-dir", own.cache_dir),
        ("--memory", own.memory), *(("--model-dir", folder) for folder in own.model_dir or ()),
    ):  # fmt: skip
        given += [] if value is None else [flag, str(value)]
    return given


def _serve(
    sock: socket.socket, host: str, key: bytes | None, lent: list[str], own: WorkerFlags
) -> None:
    from weft.cluster.lent import Lender
    from weft.cluster.running import known_folders, run_worker

    folders = [*(own.model_dir or ()), *known_folders()]
    lender = Lender(lent, folders, own.cache_dir, key, own.memory)
    run_worker(
        sock, host, lender, say=lambda text: say(text),
        ends_with_stdin=own.serve_socket is not None,
    )  # fmt: skip

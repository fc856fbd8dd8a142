"""`weft worker` lends the devices of this machine to weft on other machines."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.command import usage_error
from weft.cli.console import device_list, say
from weft.cli.machine_options import MachineKeyFile, machine_key
from weft.links.addresses import Address, parse_address
from weft.schedule.profile import parse_size

__all__ = ["worker"]

PORT = 7333
"""The port of workers where --listen names none."""


def worker(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; 0.0.0.0 is every network of this machine, and needs a key. "
            "Port 0 takes a free one.",
        ),
    ] = f"127.0.0.1:{PORT}",
    key_file: MachineKeyFile = None,
    make_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a new key to FILE, and do nothing else."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="NAMES", help="Devices to lend; default: cpu."),
    ] = None,
    model_dir: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with model files, which are used instead of being sent; repeatable.",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that keeps weights which were sent; default: in weft's cache folder.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Most memory that clients may use, e.g. 24G.",
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart/--no-restart", help="Start again, on the same port, after a crash."
        ),
    ] = True,
    serve_socket: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Lend the devices of this machine to weft on other machines: `weft run MODEL --machines
    HOST:PORT` uses them. Both sides run the same weft and know one key."""
    from weft.links.keys import write_key

    if make_key is not None:
        write_key(make_key)
        say(f"wrote a new key to {make_key}; copy it to every machine")
        return
    at = parse_address(listen, "--listen", port=PORT)
    key = machine_key(key_file)
    lent = ["cpu"] if devices is None else device_list(devices)
    room = None if memory is None else parse_size(memory)
    if serve_socket is not None:
        sock = socket.socket(fileno=serve_socket)
        _serve(sock, at.host, key, lent, model_dir or (), cache_dir, room, supervised=True)
        return
    _require_key(at, key)
    from weft.links.ends import bound_socket

    sock = bound_socket(at)
    say(
        f"lends {', '.join(lent)} on {Address(at.host, int(sock.getsockname()[1]))} "
        f"({'to whoever has the key' if key else 'to processes of this machine'}, process "
        f"{os.getpid()}); Ctrl-C ends it"
    )
    if not restart or os.name != "posix":
        _serve(sock, at.host, key, lent, model_dir or (), cache_dir, room, supervised=False)
        return
    from weft.cluster.running import supervise

    supervise(sock, _again(at, key_file, lent, model_dir or (), cache_dir, room), say)


def _require_key(at: Address, key: bytes | None) -> None:
    from weft.links.addresses import is_loopback

    if key is None and not is_loopback(at.host):
        raise usage_error(
            f"--listen {at} can be reached from other machines and needs a key: make one with "
            "`weft worker --make-key FILE`, and give it with --machine-key-file FILE"
        )


def _again(
    at: Address,
    key_file: Path | None,
    lent: list[str],
    model_dirs: list[Path] | tuple[()],
    cache_dir: Path | None,
    room: int | None,
) -> list[str]:
    """The arguments of the process that serves, but for its socket."""
    given = ["--listen", str(at), "--devices", ",".join(lent)]
    given += [] if key_file is None else ["--machine-key-file", str(key_file)]
    for folder in model_dirs:
        given += ["--model-dir", str(folder)]
    given += [] if cache_dir is None else ["--cache-dir", str(cache_dir)]
    return given + ([] if room is None else ["--memory", str(room)])


def _serve(
    sock: socket.socket,
    host: str,
    key: bytes | None,
    lent: list[str],
    model_dirs: list[Path] | tuple[()],
    cache_dir: Path | None,
    room: int | None,
    *,
    supervised: bool,
) -> None:
    from weft.cluster.running import run_worker

    run_worker(
        sock, host, key, lent, model_dirs, cache_dir, room,
        say=lambda text: say(text), ends_with_stdin=supervised,
    )  # fmt: skip

"""The options of `weft serve` for servers that others use: keys, TLS, logs, traces, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from weft.cli.command import OTHERS, usage_error
from weft.cli.groups import Group
from weft.errors import FormatError
from weft.options import option
from weft.schedule.profile import parse_size

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
WITHOUT_KEYS = (
    "warning: without --keys, --api-key or --api-key-file everybody in the network may use this "
    "server"
)


def is_in_network(options: Any) -> bool:
    """True if other machines can reach a server with these `ServeOptions`."""
    return options.uds is None and options.host not in _LOOPBACK


def page_line(url: str) -> str:
    """Where a browser finds the page of a server that listens at `url`; an address that stands for
    all of this machine's is none to open, and a browser opens no Unix socket."""
    if "://unix:" in url:
        return "page to chat: at the address of the proxy in front of this socket"
    for every, own in (("://0.0.0.0:", "://127.0.0.1:"), ("://[::]:", "://[::1]:")):
        if every in url:
            here = url.replace(every, own)
            return f"page to chat: {here}/ (from other machines by this machine's name)"
    return f"page to chat: {url}/"


def _size(flag: str) -> Any:
    def parse(text: str | int) -> int:
        try:
            return parse_size(str(text))
        except FormatError:
            raise usage_error(f"{flag} {text}: give a size, e.g. 512MiB") from None

    return parse


class OthersFlags(Group):
    """Options for servers that others use."""

    uds: Path | None = option(
        None, "Listen at a Unix socket instead of --host and --port; its file goes with the "
        "server.", "--uds", OTHERS, metavar="PATH",
    )  # fmt: skip
    root_path: str = option(
        "", "Path below which a proxy has this server, such as /llm.", panel=OTHERS,
        metavar="PATH", show_default=False,
    )  # fmt: skip
    api_key_file: Path | None = option(None, "Keys, one a line.", panel=OTHERS, metavar="FILE")
    keys: Path | None = option(
        None, "Keys with names, limits and usage, made by `weft keys`.", panel=OTHERS,
        metavar="FILE", envvar="WEFT_KEYS",
    )  # fmt: skip
    ssl_key_file: Path | None = option(
        None, "Private key for TLS, in PEM format.", "--ssl-key-file --ssl-keyfile", OTHERS,
        metavar="FILE",
    )  # fmt: skip
    ssl_cert_file: Path | None = option(
        None, "Certificate for TLS, with those in between.", "--ssl-cert-file --ssl-certfile",
        OTHERS, metavar="FILE",
    )  # fmt: skip
    log_format: Literal["text", "json"] = option("text", "json: an object a line.", panel=OTHERS)
    log_file: Path | None = option(
        None, "Append the log to FILE, not to stderr.", panel=OTHERS, metavar="FILE"
    )
    otel: bool = option(
        False,
        "Send traces by OpenTelemetry, as OTEL_EXPORTER_OTLP_ENDPOINT and the other standard "
        "variables say.", panel=OTHERS,
    )  # fmt: skip
    files_dir: Path | None = option(
        None, "Folder for files of clients and their batches (/v1/files, /v1/batches).",
        panel=OTHERS, metavar="DIR",
    )  # fmt: skip
    max_file: int | None = option(
        None, "Most bytes of a file of a client; default: 512MiB.", panel=OTHERS, metavar="SIZE",
        read=_size('--max-file'),
    )  # fmt: skip
    files_dir_size: int | None = option(
        None, "Most bytes of all files in --files-dir; default: 8GiB.", panel=OTHERS,
        metavar="SIZE", read=_size('--files-dir-size'),
    )  # fmt: skip
    batch_parallel: int | None = option(
        None, "Most lines of batches under way; default: half of --parallel.", panel=OTHERS,
        metavar="N",
    )  # fmt: skip
    transcriber: Path | None = option(
        None, "A model of Whisper or Parakeet for /v1/audio/transcriptions, with times.",
        panel=OTHERS, metavar="MODEL",
    )  # fmt: skip
    speaker: Path | None = option(
        None, "A model that speaks for /v1/audio/speech: Pocket TTS or OuteTTS.", panel=OTHERS,
        metavar="MODEL",
    )  # fmt: skip
    cache_events: int | None = option(
        None, "Note what happens to the cache, and show the last N updates on /plan.", panel=OTHERS,
        metavar="N",
    )  # fmt: skip

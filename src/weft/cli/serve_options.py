"""The options of `weft serve` for servers that others use: keys, TLS, logs, traces, files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import OTHERS, usage_error
from weft.cli.replaced import parameters_of, replaces
from weft.errors import FormatError
from weft.schedule.profile import parse_size

__all__ = ["others_flags"]


class LogFormat(StrEnum):
    """The values of `--log-format`."""

    text = "text"
    json = "json"


def _size(flag: str) -> Any:
    def parse(text: str | int) -> int:
        try:
            return parse_size(str(text))
        except FormatError:
            raise usage_error(f"{flag} {text}: give a size, e.g. 512MiB") from None

    return parse


def _arguments(
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=OTHERS, help="Keys, one a line."),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", metavar="FILE", envvar="WEFT_KEYS", rich_help_panel=OTHERS,
            help="Keys with names, limits and usage, made by `weft keys`.",
        ),
    ] = None,
    ssl_key_file: Annotated[
        Path | None,
        typer.Option(
            "--ssl-key-file", "--ssl-keyfile", metavar="FILE", rich_help_panel=OTHERS,
            help="Private key for TLS, in PEM format.",
        ),
    ] = None,
    ssl_cert_file: Annotated[
        Path | None,
        typer.Option(
            "--ssl-cert-file", "--ssl-certfile", metavar="FILE", rich_help_panel=OTHERS,
            help="Certificate for TLS, with those in between.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option(rich_help_panel=OTHERS, help="json: an object a line."),
    ] = LogFormat.text,
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=OTHERS, help="Append the log to FILE, not to stderr."
        ),
    ] = None,
    otel: Annotated[
        bool,
        typer.Option(
            "--otel", rich_help_panel=OTHERS,
            help="Send traces by OpenTelemetry, as OTEL_EXPORTER_OTLP_ENDPOINT and the other "
            "standard variables say.",
        ),
    ] = False,
    files_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", rich_help_panel=OTHERS,
            help="Folder for files of clients and their batches (/v1/files, /v1/batches).",
        ),
    ] = None,
    max_file: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE", rich_help_panel=OTHERS, parser=_size("--max-file"),
            help="Most bytes of a file of a client; default: 512MiB.",
        ),
    ] = None,
    files_dir_size: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE", rich_help_panel=OTHERS, parser=_size("--files-dir-size"),
            help="Most bytes of all files in --files-dir; default: 8GiB.",
        ),
    ] = None,
    batch_parallel: Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel=OTHERS,
            help="Most lines of batches under way; default: half of --parallel.",
        ),
    ] = None,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of `ServeOptions`."""
    given: dict[str, Any] = {
        "api_key_file": api_key_file, "keys": keys,
        "ssl_key_file": ssl_key_file, "ssl_cert_file": ssl_cert_file,
        "log_format": log_format.value, "log_file": log_file, "otel": otel,
        "files_dir": files_dir, "max_file": max_file, "files_dir_size": files_dir_size,
        "batch_parallel": batch_parallel,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


others_flags = replaces("others", parameters_of(_arguments), _arguments)
"""Replaces the parameter `others` of a command by the options of this module."""

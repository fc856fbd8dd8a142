"""`weft keys` adds, lists and revokes the keys of a server, and shows their usage."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.command import usage_error
from weft.cli.console import say
from weft.cli.groups import Group, grouped
from weft.errors import ContextError
from weft.keys import Key, KeyStore, Used
from weft.options import option, parse_tokens

_ACTIONS = {"add": 1, "list": 0, "revoke": 1, "usage": 1}
"""The actions, and how many names they take at most."""


class KeysFlags(Group):
    """The options of `weft keys`."""

    file: Path | None = option(
        None, "The file of keys, limits and usage (SQLite).", "--keys", metavar="FILE",
        envvar="WEFT_KEYS",
    )  # fmt: skip
    limit_rpm: int | None = option(None, "Requests in a minute.", metavar="N", read=parse_tokens)
    limit_tpd: int | None = option(
        None, "Tokens in a day (UTC), of prompts and answers, e.g. 2000000.", metavar="TOKENS",
        read=parse_tokens,
    )  # fmt: skip
    max_parallel: int | None = option(None, "Requests at a time.")
    expires: str | None = option(
        None, "When the key ends: 12h, 30d, or a day, 2027-01-31.", metavar="WHEN"
    )
    since: str | None = option(None, "First day of usage; default: 30 days ago.", metavar="DAY")
    as_json: bool = option(False, "Print JSON.", "--json")


@grouped
def keys(
    action: Annotated[str, typer.Argument(metavar="|".join(_ACTIONS))],
    own: KeysFlags,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of the key.")] = None,
) -> None:
    """Add, list or revoke keys of a server, or show what they used. `weft serve --keys FILE`
    accepts them; a running server knows of changes within a second."""
    if action not in _ACTIONS:
        raise usage_error(f"{action!r} is none of {', '.join(_ACTIONS)}")
    if own.file is None:
        raise usage_error("say which file has the keys: --keys FILE, or WEFT_KEYS")
    if name is None and action in ("add", "revoke"):
        raise usage_error(f"weft keys {action} takes the NAME of a key")
    if name is not None and not _ACTIONS[action]:
        raise usage_error(f"weft keys {action} takes no name")
    limits = {name: getattr(own, name) for name in ("limit_rpm", "limit_tpd", "max_parallel")}
    if action != "add" and (own.expires is not None or any(limits.values())):
        raise usage_error(f"weft keys {action} takes no limits; weft keys add does")
    if action != "add" and not own.file.exists():
        raise ContextError(f"there is no file {own.file}; `weft keys add NAME` makes it")
    store = KeyStore(own.file)
    try:
        if action == "add" and name is not None:
            ends = None if own.expires is None else _time_of(own.expires)
            secret = store.add(name, expires=ends, **limits)
            say(f"{name} is added; this is its key, which is shown only now:")
            print(json.dumps({"name": name, "key": secret}) if own.as_json else secret)
        elif action == "revoke" and name is not None:
            store.revoke(name)
            say(f"{name} is revoked; its usage stays")
        elif action == "list":
            _list(store.all(), own.as_json)
        else:
            _usage(store.usage(name, _first_day(own.since)), own.as_json)
    finally:
        store.close()


def _time_of(text: str) -> int:
    """Seconds since 1970 of a time from now (`12h`, `30d`) or of the end of a day."""
    span = re.fullmatch(r"(\d{1,6})([hd])", text.strip())
    if span:
        return int(time.time()) + int(span[1]) * (3600 if span[2] == "h" else 86400)
    try:
        day = date.fromisoformat(text.strip())
    except ValueError:
        raise usage_error(f"--expires {text}: write 12h, 30d or a day as 2027-01-31") from None
    ends = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    if ends.timestamp() <= time.time():
        raise usage_error(f"--expires {text}: that day is over")
    return int(ends.timestamp())


def _first_day(text: str | None) -> str:
    if text is None:
        return (datetime.now(UTC) - timedelta(days=30)).date().isoformat()
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise usage_error(f"--since {text}: write a day as 2026-01-31") from None


def _list(all_keys: Sequence[Key], as_json: bool) -> None:
    if as_json:
        names = ("name", "hint", "created", "expires", "revoked", "limit_rpm", "limit_tpd",
                 "max_parallel")  # fmt: skip
        print(json.dumps([{n: getattr(key, n) for n in names} for key in all_keys]))
        return
    head = ("name", "key", "state", "created", "expires", "rpm", "tokens/day", "parallel")
    rows = [
        (
            key.name, f"{key.hint}...", _state(key), _day(key.created), _day(key.expires),
            *(str(x) if x else "-" for x in (key.limit_rpm, key.limit_tpd, key.max_parallel)),
        )
        for key in all_keys
    ]  # fmt: skip
    _table(head, rows)


def _state(key: Key) -> str:
    if key.revoked is not None:
        return "revoked"
    return "expired" if key.why_refused else "valid"


def _day(seconds: int | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _usage(rows: Sequence[Used], as_json: bool) -> None:
    if as_json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    _table(Used._fields, [tuple(map(str, row)) for row in rows])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip())

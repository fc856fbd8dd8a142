"""The model's plan as a page, its policy, and tickets that open it where a key is needed."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from time import monotonic

from weft.serve.errors import ApiError
from weft.serve.service import Service

__all__ = ["Tickets", "plan_page", "policy_of"]

_SECONDS = 60.0
_MOST = 64
_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.S)
_STYLE = re.compile(r"<style[^>]*>(?P<text>.*?)</style>", re.S)


class Tickets:
    """Words that open a page once, for a minute. The last 64 are known."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def new(self) -> str:
        """A new ticket."""
        now = monotonic()
        self._ends = {t: end for t, end in self._ends.items() if end > now}
        while len(self._ends) >= _MOST:
            del self._ends[next(iter(self._ends))]
        ticket = secrets.token_urlsafe(24)
        self._ends[ticket] = now + _SECONDS
        return ticket

    def take(self, ticket: str) -> bool:
        """True if the ticket is good; it is not good again."""
        return self._ends.pop(ticket, 0.0) > monotonic()


def plan_page(service: Service) -> tuple[str, str]:
    """The page of the model's plan and its Content-Security-Policy. Raises ApiError where there is
    none."""
    raise ApiError(501, "this server cannot show a plan yet")


def policy_of(html: str) -> str:
    """The policy of a page that has all it needs in itself: its own scripts and styles may run,
    each by its hash, and nothing else, nor may it ask for anything."""
    scripts = [_hash(match["text"]) for match in _SCRIPT.finditer(html)]
    allowed = " ".join(scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; "
        "style-src 'unsafe-inline'; img-src data: blob:; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"

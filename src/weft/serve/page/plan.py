"""The plan of a served model as a page, and the policy of that page."""

from __future__ import annotations

import base64
import hashlib
import re
import threading

from weft.report import page_html, plan_data
from weft.serve.errors import ApiError
from weft.serve.service import Service

__all__ = ["PlanPage", "policy_of"]

_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.S)


class PlanPage:
    """The report of a model's plan, made when it is first asked for and kept."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._made: tuple[str, str] | None = None

    def made(self) -> tuple[str, str]:
        """The page and its Content-Security-Policy. Raises ApiError for a server without a
        context."""
        with self._lock:  # two readers do not make it twice
            if self._made is None:
                html = self._html()
                self._made = html, policy_of(html)
            return self._made

    def _html(self) -> str:
        service = self._service
        part = service.engine_or_none or service.embedder_or_none
        if part is None:
            raise ApiError(503, f"{service.model_id} has no context, so it has no plan")
        # without sliders, for which the page plans twenty other contexts: that would take time
        # from running texts
        data = plan_data(
            part.context,
            kept=service.options.prefixes(),
            beside=[context.plan for context in service.draft_contexts.values()],
            sliders=False,
        )
        return page_html(data, f"{service.model_id}, as it is served")


def policy_of(html: str) -> str:
    """The policy of a page that has all it needs in itself: its own scripts may run, each by its
    hash, and nothing else, nor may it ask for anything."""
    scripts = " ".join(
        _hash(match["text"])
        for match in _SCRIPT.finditer(html)
        if "type=" not in match["attributes"]  # data
    )
    allowed = scripts or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"

"""Traces of requests by OpenTelemetry, with the extra `weft[otel]`.

A request is a span, and each of its texts has spans for its time in the queue, its prompt and its
tokens. Spans are made when a request has ended, from times that were noted, so that a trace costs
nothing while texts are written. Attributes follow the conventions for HTTP servers and generative
AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/). No text of a request is part of a trace.

Where traces go, how many, and under which name is said by the standard variables of the
environment: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and others. The
header `traceparent` of a request makes its span a part of the client's trace.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from starlette.types import Scope

from weft.errors import WeftError
from weft.extras import how_to_install
from weft.llm.engine import Done, Times
from weft.serve.endpoints import nearest
from weft.serve.record import route_of, tokens_of
from weft.version import __version__

_CLOSE_MILLIS = 3000
"""Milliseconds for the last spans when the server ends."""


class Traces:
    """Makes spans of requests and sends them in the background."""

    def __init__(self, provider: Any = None) -> None:
        """`provider` is a TracerProvider of OpenTelemetry's SDK; None: one that sends spans over
        OTLP. Raises WeftError if the extra is missing."""
        self._api = _imported("opentelemetry.trace")
        self._propagator = _imported(
            "opentelemetry.trace.propagation.tracecontext"
        ).TraceContextTextMapPropagator()
        self._provider = _provider() if provider is None else provider
        self._tracer = self._provider.get_tracer("weft.serve", __version__)

    def note(self, scope: Scope, status: int, began: float, ended: float, model: str) -> None:
        """Makes the spans of a request that has ended; times are of `time.monotonic`. Notes
        the id of the trace in the request's state."""
        endpoint = nearest(scope["path"])
        if endpoint.polled:
            return
        offset = time.time_ns() - round(time.monotonic() * 1e9)
        state = scope["state"]
        attributes = _http_attributes(scope, status) | {"weft.request.id": state["request_id"]}
        name = f"{scope['method'][:20]} {attributes['http.route']}"
        tokens = tokens_of(state)
        if tokens is not None:
            operation = endpoint.operation or _operation(state)
            attributes |= {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "weft",
                "gen_ai.request.model": model,
                "gen_ai.response.model": model,
                "gen_ai.usage.input_tokens": tokens.prompt,
                "gen_ai.usage.cache_read.input_tokens": tokens.cached,
                "gen_ai.usage.output_tokens": tokens.generated,
                **_asked(state),
            }
            name = f"{operation} {model}"
        if "key" in state:
            attributes["enduser.id"] = state["key"]
        span = self._tracer.start_span(
            name, context=self._context(scope), kind=self._api.SpanKind.SERVER,
            attributes=attributes, start_time=_nanos(began, offset),
        )  # fmt: skip
        if status >= 500:
            span.set_status(self._api.StatusCode.ERROR)
            span.set_attribute("error.type", str(status))
        if span.is_recording():
            self._texts(span, state, offset)
        span.end(_nanos(ended, offset))
        trace_id = span.get_span_context().trace_id
        if trace_id:
            state["trace_id"] = f"{trace_id:032x}"

    def close(self) -> None:
        """Sends what is left, for at most three seconds."""
        self._provider.force_flush(_CLOSE_MILLIS)
        self._provider.shutdown()

    def _context(self, scope: Scope) -> Any:
        """The context of the client's span, if it sent one."""
        names = ("traceparent", "tracestate")
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name.decode("latin-1") in names
        }
        return self._propagator.extract(carrier)

    def _texts(self, span: Any, state: dict[str, Any], offset: int) -> None:
        texts = state.get("texts")
        inside = self._api.set_span_in_context(span)
        ends = {} if texts is None else texts.ends
        for number in sorted(ends):
            self._text(inside, number, ends[number], offset)
        first = min((e.times.first for e in ends.values() if e.times and e.times.first), default=0)
        if first:
            span.add_event("gen_ai.first_token", timestamp=_nanos(first, offset))
        if ends:
            reasons = [ends[number].reason for number in sorted(ends)]
            span.set_attribute("gen_ai.response.finish_reasons", reasons)

    def _text(self, inside: Any, number: int, end: Done, offset: int) -> None:
        times = end.times
        if times is None:
            return
        for name, start, stop in _phases(times):
            part = self._tracer.start_span(
                name, context=inside, start_time=_nanos(start, offset),
                attributes={"weft.text": number, **_about_phase(name, end)},
            )  # fmt: skip
            part.end(_nanos(stop, offset))


def _phases(times: Times) -> list[tuple[str, float, float]]:
    """Name, start and end of what happened to a text."""
    started, first = times.started or times.ended, times.first or times.ended
    phases = [("queue", times.asked, started)]
    if times.started:
        phases.append(("prompt", started, first))
    if times.first:
        phases.append(("generation", first, times.ended))
    return phases


def _about_phase(name: str, end: Done) -> dict[str, Any]:
    if name == "prompt":
        return {
            "gen_ai.usage.input_tokens": end.n_prompt,
            "gen_ai.usage.cache_read.input_tokens": end.n_reused,
        }
    return {"gen_ai.usage.output_tokens": end.n_generated} if name == "generation" else {}


def _nanos(seconds: float, offset: int) -> int:
    """Nanoseconds since 1970 of a time of `time.monotonic`."""
    return round(seconds * 1e9) + offset


def _http_attributes(scope: Scope, status: int) -> dict[str, Any]:
    return {
        "http.request.method": scope["method"][:20],
        "http.route": route_of(scope),
        "http.response.status_code": status,
        "url.path": scope["path"][:200],
        "url.scheme": scope.get("scheme", "http"),
        "client.address": (scope.get("client") or ("",))[0],
    }


def _operation(state: dict[str, Any]) -> str:
    texts = state.get("texts")
    return "chat" if texts is None or texts.asked.message is not None else "text_completion"


def _asked(state: dict[str, Any]) -> dict[str, Any]:
    """Attributes of the request for the first text."""
    texts = state.get("texts")
    if texts is None or not texts.tickets:
        return {}
    request = texts.tickets[0].request
    found = {
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.choice.count": len(texts.tickets),
        "gen_ai.request.temperature": float(request.sampling.temperature),
        "gen_ai.request.top_p": float(request.sampling.top_p),
    }
    return {name: value for name, value in found.items() if value is not None}


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise WeftError(f"--otel needs {error.name}; {how_to_install('otel')}") from None


def _provider() -> Any:
    resources = _imported("opentelemetry.sdk.resources")
    sdk, export = (_imported(f"opentelemetry.sdk.trace{part}") for part in ("", ".export"))
    otlp = _imported("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    resource = resources.Resource.create()
    if str(resource.attributes.get("service.name", "unknown")).startswith("unknown"):
        resource = resource.merge(resources.Resource({"service.name": "weft"}))
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider

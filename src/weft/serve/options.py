"""The options of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from weft.bounds import CACHE_EVENTS
from weft.errors import ContextError
from weft.llm.cache.prefix_options import PREFIX_OPTIONS, PrefixOptions
from weft.llm.engine.admission import POLICY, Policy, QueueOptions
from weft.llm.engine.batches import DELAY
from weft.llm.sampling import SamplingParams
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of a server. Raises ContextError for a value out of range."""

    host: str = "127.0.0.1"
    """Address to listen at. The default serves this machine only; 0.0.0.0 serves every network and
    should have an API key."""
    port: int = 8080
    """Port to listen at; 0: any free one."""
    uds: Path | None = None
    """Path of a Unix socket to listen at, in place of `host` and `port`; None: none."""
    root_path: str = ""
    """The path below which a proxy has the server, such as /llm; empty: the root."""
    api_key: str | None = None
    """Key that clients must send as `Authorization: Bearer KEY`; None: no key is needed."""
    api_key_file: Path | None = None
    """Text file with further keys, one a line."""
    keys: Path | None = None
    """SQLite file of keys with names, limits and usage (`weft keys`)."""
    ssl_key_file: Path | None = None
    """File of the private key for TLS, in PEM format; None: plain HTTP."""
    ssl_cert_file: Path | None = None
    """File of the certificate for TLS, with those that lead to a known one."""
    transcriber: Path | None = None
    """A model of Whisper or Parakeet for transcripts; None: the model makes them, if it hears."""
    speaker: Path | None = None
    """A model that speaks; None: the server makes no sound."""
    chat_template: str | None = None
    """Jinja template in place of the model's."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template for requests that do not set them."""
    system: str | None = None
    """System message of chats that have none."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Options of `SamplingParams` for requests that do not set them."""
    alias: str | None = None
    """Name of the model for clients; None: its file name."""
    aliases: tuple[str, ...] = ()
    """Further names of the model for clients."""
    parallel: int = 8
    """Maximum number of texts that are written at the same time; others wait."""
    max_queue: int = 64
    """Maximum number of requests that wait; further ones get 429."""
    max_wait: float = 600.0
    """Maximum number of seconds that a request waits for its start; one that waits longer, or
    would, gets 429. 0: any."""
    scheduling_policy: Policy = POLICY
    """The order of requests that wait: "shortest" starts the prompt with the least to compute
    first, "fcfs" the first that came."""
    max_body: int = 4 << 20
    """Maximum number of bytes of a request's body; larger ones get 413."""
    max_connections: int = 256
    """Maximum number of connections at the same time; fewer if the process may not open so many
    files."""
    head_timeout: float = 10.0
    """Seconds for the head of a request; also how long a connection may be idle."""
    body_timeout: float = 60.0
    """Seconds for the body of a request, and for a client that does not read its answer."""
    allow_hosts: tuple[str, ...] = ()
    """Names accepted as Host of a request without a key, besides those of this machine."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may read answers in a browser; "*": all."""
    strict: bool = False
    """True answers unknown fields of requests with 400, False with a header that names them."""
    log_level: str = "info"
    """Least level that is logged: debug, info, warning or error."""
    log_format: str = "text"
    """"text", or "json" for an object a line."""
    log_file: Path | None = None
    """File to which the log is appended; None: stderr."""
    otel: bool = False
    """True sends traces by OpenTelemetry."""
    files_dir: Path | None = None
    """Folder for the files of clients and their batches; None: there are none."""
    max_file: int = 512 << 20
    """Maximum number of bytes of a file of a client."""
    files_dir_size: int = 8 << 30
    """Maximum number of bytes of all files of clients."""
    batch_parallel: int | None = None
    """Maximum number of lines of batches under way; None: half of `parallel`, at least 1."""
    max_tokens: int | None = None
    """Maximum number of tokens that a request may ask for; more gets 400. None: as many as the
    context holds."""
    prompt_delay: float = DELAY
    """Seconds that the prompts of others may add to a step of the texts being written: 0.001 to
    60."""
    max_choices: int = 16
    """Maximum number of texts of one request (prompts times `n`)."""
    grace: float = 30.0
    """Seconds that running requests have to finish when the server is told to stop."""
    cache_ram: int = 1 << 30
    """Maximum number of bytes of host memory for texts that leave the cache and for checkpoints; 0:
    none."""
    ctx_checkpoints: int = 32
    """Maximum number of checkpoints of recurrent states for each text that runs at the same time;
    0: none."""
    checkpoint_every: int = 8192
    """A prompt has a checkpoint after each such number of tokens, and where messages end; 0: only
    there."""
    cache_dir: Path | None = None
    """Folder in which texts are kept for the next start with the same model; None: nowhere."""
    cache_dir_size: int = 8 << 30
    """Maximum number of bytes of the files in `cache_dir`."""
    cache_events: int = 0
    """Number of updates of the cache that `/plan` shows, the last ones; 0: none, and none are
    noted."""

    def __post_init__(self) -> None:
        lows = {"port": 0, "parallel": 1, "max_body": 1, "max_choices": 1,
                "max_connections": 1, "max_file": 1, "files_dir_size": 1}  # fmt: skip
        for name, low in lows.items():
            if getattr(self, name) < low:
                raise ContextError(
                    f"is {getattr(self, name)}; it must be {low} or more", argument=name
                )
        if self.port > 65535:
            raise ContextError(f"is {self.port}; ports end at 65535", argument="port")
        object.__setattr__(self, "root_path", self.root_path.rstrip("/"))
        if re.fullmatch(r"(/[A-Za-z0-9_.~-]+)*", self.root_path) is None:
            raise ContextError(
                f"is {self.root_path!r}; it begins with / and has letters, digits, _, ., ~, - and "
                "/, e.g. /llm", argument="root_path",
            )  # fmt: skip
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ContextError(f"is {self.max_tokens}; it must be 1 or more", argument="max_tokens")
        if not 0 <= self.cache_events <= CACHE_EVENTS:
            raise ContextError(
                f"is {self.cache_events}; it must be 0 to {CACHE_EVENTS}", argument="cache_events"
            )
        if not 0 <= self.grace < 1e6:
            raise ContextError(f"is {self.grace}; it is a number of seconds", argument="grace")
        if not 0.001 <= self.prompt_delay <= 60:
            raise ContextError(
                f"is {self.prompt_delay:g}; it is a number of seconds, 0.001 to 60",
                argument="prompt_delay",
            )
        self.queue()  # refuses values out of range
        for name in ("head_timeout", "body_timeout"):
            if not 0 < getattr(self, name) < 1e6:
                raise ContextError(
                    f"is {getattr(self, name)}; it is a number of seconds", argument=name
                )
        for origin in self.cors_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ContextError(
                    f"{origin!r} is no origin; write scheme, name and port as a browser sends "
                    "them, e.g. https://example.com:8443, or *"
                )
        self.prefixes()
        SamplingParams(**self.sampling)  # raises for a value out of range
        if self.api_key == "":
            raise ContextError("the API key is empty; leave it out to let everybody in")
        if (self.ssl_key_file is None) != (self.ssl_cert_file is None):
            raise ContextError("TLS needs both --ssl-key-file and --ssl-cert-file")
        if self.batch_parallel is not None and not 1 <= self.batch_parallel <= self.parallel:
            raise ContextError(
                f"is {self.batch_parallel}; it must be 1 to {self.parallel}, the texts at the "
                "same time",
                argument="batch_parallel",
            )

    @property
    def needs_key(self) -> bool:
        """True if clients must send a key."""
        return any(x is not None for x in (self.api_key, self.api_key_file, self.keys))

    def queue(self) -> QueueOptions:
        """How many requests may wait, how long, and in which order."""
        return QueueOptions(self.max_queue, self.max_wait, self.scheduling_policy)

    def prefixes(self) -> PrefixOptions:
        """What is kept of texts beside the cache."""
        return PrefixOptions(**{name: getattr(self, name) for name in PREFIX_OPTIONS})

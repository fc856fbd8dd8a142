"""`weft serve`: a model behind the OpenAI API."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.console import LoadProgress, errors
from weft.cli.options import (
    ActivationsName,
    ActivationsOption,
    CacheTypeK,
    CacheTypeV,
    Devices,
    Fit,
    GpuLayers,
    Memory,
    NoRewrite,
    Place,
    PlanFile,
    PolicyName,
    PolicyOption,
    ProfileFile,
    Repack,
    placement_arguments,
)
from weft.cli.thread_options import (
    CpuMask,
    CpuRange,
    CpuStrict,
    NumaOption,
    Poll,
    Prio,
    Threads,
    ThreadsBatch,
    thread_options,
)
from weft.errors import WeftError

__all__ = ["serve"]


def serve(
    model: Annotated[Path, typer.Argument(help="A GGUF model.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is every network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: any free one.")] = 8080,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="WEFT_API_KEY", help="What clients must send as their key."),
    ] = None,
    alias: Annotated[
        str | None, typer.Option(help="The model's name for clients; default: the file's.")
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", "-np", help="Texts written at the same time.")
    ] = 8,
    max_queue: Annotated[
        int, typer.Option(help="Requests that may wait; the next gets status 429.")
    ] = 64,
    max_body: Annotated[int, typer.Option(help="Bytes of a request's body.")] = 4 << 20,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens that a request may ask for.")
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds for running requests when the server is stopped.")
    ] = 30.0,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Give embeddings too, over a second context.")
    ] = False,
    threads: Threads = None,
    threads_batch: ThreadsBatch = None,
    cpu_mask: CpuMask = None,
    cpu_range: CpuRange = None,
    cpu_strict: CpuStrict = False,
    prio: Prio = "normal",
    poll: Poll = 50,
    numa: NumaOption = None,
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size", "-c",
            help="Tokens of all texts together; default: 2048 for each of --parallel, less where "
            "the model was trained for less.",
        ),
    ] = None,
    ubatch: Annotated[
        int | None, typer.Option("--ubatch-size", help="Most tokens computed at once.")
    ] = None,
    devices: Devices = None,
    gpu_layers: GpuLayers = None,
    place: Place = None,
    fit: Fit = False,
    memory: Memory = None,
    plan: PlanFile = None,
    policy: PolicyOption = PolicyName.ggml,
    profile: ProfileFile = None,
    repack: Repack = None,
    no_rewrite: NoRewrite = None,
    type_k: CacheTypeK = None,
    type_v: CacheTypeV = None,
    activations: ActivationsOption = ActivationsName.native,
) -> None:  # fmt: skip
    """Serve the OpenAI API: chat, completions, embeddings; see docs/serve.md."""
    try:
        api = importlib.import_module("weft.serve")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("weft"):
            raise
        raise WeftError(
            f"the server needs {error.name}; install it with: pip install 'weft[serve]'"
        ) from None
    options = api.ServeOptions(
        host=host, port=port, api_key=api_key, alias=alias, parallel=parallel,
        max_queue=max_queue, max_body=max_body, max_tokens=max_tokens, grace=grace,
    )  # fmt: skip
    cpu = thread_options(threads, threads_batch, cpu_mask, cpu_range, cpu_strict, prio, poll, numa)
    with LoadProgress() as progress:
        service = api.Service(
            model, options, embeddings=embeddings, n_ctx=ctx_size, n_ubatch=ubatch, threads=cpu,
            type_k=type_k, type_v=type_v, activations=activations.value, progress=progress,
            **placement_arguments(
                devices, gpu_layers, place, plan, fit, memory, policy, profile, repack, no_rewrite
            ),
        )  # fmt: skip

    def ready(url: str) -> None:
        errors.print(f"serving {service.model_id} at {url}/v1", markup=False, soft_wrap=True)

    api.run_server(service, ready)

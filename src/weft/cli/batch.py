"""`weft batch` answers a file of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.batch import Answer, Counts, Journal, Line, read_lines, run_batch
from weft.batch.lines import LONGEST_LINE, count_lines
from weft.cli.console import CountProgress, LoadProgress, say
from weft.cli.draft_options import DraftFlags
from weft.cli.groups import Group
from weft.cli.loading import loads_model
from weft.cli.model_file import ModelFile
from weft.cli.options import TEXT_OPTIONS
from weft.cli.prefix_flags import PrefixFlags
from weft.cli.ray_options import OnRay, RayFlags, server_package
from weft.cli.serve import SeveralLoad, calm_collector, service_lines
from weft.errors import ContextError
from weft.llm.planning.draft_options import DraftOptions
from weft.options import option

Answerer = tuple[Callable[[Line], Awaitable[Answer]], int]
"""The function that answers a line, and the maximum number of lines under way."""

TEXTS_PER_LINE = 16
"""Maximum number of texts of one line (prompts times `n`), as in the server."""


class BatchFlags(Group):
    """The options of `weft batch` that are in no group."""

    table = TEXT_OPTIONS
    parallel: int = option(
        8, "Texts written at the same time.", "--parallel -np --max-num-seqs", min=1
    )
    ordered: bool = option(False, "Write answers in the order of IN, not as they are done.")
    alias: str | None = option(
        None, "The model's name in answers; default: the file's.", "--alias -a"
    )
    max_tokens: int | None = option(None, "Most tokens that a request may ask for.")
    mmproj: Path | None
    embeddings: bool = option(
        False, "Give embeddings, too; so does a file whose first line asks for one.",
        "--embeddings --embedding",
    )  # fmt: skip
    quiet: bool = option(False, "Print errors only.", "--quiet -q")


@loads_model
def batch(
    model: ModelFile,
    kept: Annotated[dict[str, Any], PrefixFlags],
    requests: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="Requests, one a line.", show_default=False)
    ],
    answers: Annotated[
        Path,
        typer.Argument(
            metavar="OUT.jsonl", show_default=False,
            help="Answers, one a line; one that exists is gone on with.",
        ),
    ],
    own: BatchFlags,
    on_ray: Annotated[OnRay | None, RayFlags],
    drafts: Annotated[DraftOptions | None, DraftFlags],
    load: Annotated[dict[str, Any], SeveralLoad],
) -> None:  # fmt: skip
    """Answer a file of requests, in OpenAI's batch format. Stop it as you like: the same command
    goes on from there. The exit code is 1 if a row of OUT has an error."""
    api = server_package("batches need", on_ray)
    n_lines, asks_embedding = _look_at(requests)
    with Journal(answers) as journal:
        options = api.ServeOptions(
            alias=own.alias, parallel=own.parallel, max_tokens=own.max_tokens, max_wait=0.0,
            max_queue=(2 * TEXTS_PER_LINE) * own.parallel, max_choices=TEXTS_PER_LINE, **kept,
        )  # fmt: skip
        arguments: dict[str, Any] = {
            "embeddings": own.embeddings or asks_embedding, "drafting": drafts,
            "mmproj": own.mmproj, **load,
        }  # fmt: skip
        if on_ray is None:
            answerer = one_machine(api, model, options, arguments, quiet=own.quiet)
        else:
            from weft.cli.replicas import batch_actors

            answerer = batch_actors(model, options, arguments, on_ray, quiet=own.quiet)
        try:
            with answerer as (handle, n_open), CountProgress("answering requests") as bar:
                if not own.quiet and journal.n_rows:
                    say(f"{answers} has {journal.n_rows} rows; going on from there")
                counts = asyncio.run(
                    _run(handle, requests, journal, own.ordered, n_open, bar, n_lines)
                )
        except KeyboardInterrupt:
            say(f"{answers} has {journal.n_rows} rows; the same command goes on from there")
            raise
    if not own.quiet:
        say(_summary(counts, answers))
    if counts.failed:
        raise typer.Exit(1)


@contextmanager
def one_machine(
    api: Any, model: Path, options: Any, arguments: dict[str, Any], *, quiet: bool
) -> Iterator[Answerer]:
    """Loads the model here. Gives what answers lines and the most lines under way."""
    from weft.serve.internal import line_handler
    from weft.serve.routes import create_app

    with LoadProgress() as progress:
        service = api.Service(model, options, progress=progress, **arguments)
    try:
        if not quiet:
            for text in service_lines(model, service):
                say(text)
        calm_collector()
        yield line_handler(create_app(service)), 2 * options.parallel
    finally:
        service.close()


async def _run(
    handle: Callable[[Line], Awaitable[Answer]],
    requests: Path,
    journal: Journal,
    ordered: bool,
    n_open: int,
    bar: CountProgress,
    n_lines: int,
) -> Counts:
    from weft.serve.endpoints import BATCHABLE

    with requests.open("rb") as file:
        return await run_batch(
            read_lines(file, BATCHABLE), journal, handle, parallel=n_open, ordered=ordered,
            progress=lambda counts: bar(counts.done, n_lines),
        )  # fmt: skip


def _look_at(requests: Path) -> tuple[int, bool]:
    """The number of lines, and if the first one asks for an embedding. Raises ContextError for a
    file that cannot be read."""
    try:
        with requests.open("rb") as file:
            try:
                first = json.loads(file.readline(LONGEST_LINE))
            except (ValueError, RecursionError):
                first = None
            file.seek(0)
            url = first.get("url") if isinstance(first, dict) else None
            return count_lines(file), url == "/v1/embeddings"
    except OSError as error:
        raise ContextError(f"{requests}: {error.strerror or error}") from None


def _summary(counts: Counts, answers: Path) -> str:
    new = counts.done - counts.skipped
    failed = f", {counts.failed} of them with an error" if counts.failed else ""
    before = f", {counts.skipped} were there" if counts.skipped else ""
    return f"{answers}: {counts.done} rows{failed}; {new} are new{before}"

"""Answers the rows of a dataset of Ray Data by a model on the machines of a cluster.

    import ray, weft.ray

    rows = ray.data.read_json("questions.jsonl")  # a column `prompt`, or `messages`
    weft.ray.map_batches(rows, "model.gguf", replicas=(1, 4), kept="kept", max_tokens=64) \
        .write_json("answers")

Needs the extra `weft[ray]` on every machine. The module is imported without it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from weft.cluster.kept_rows import KeptRows
from weft.cluster.ray_cluster import import_ray, join
from weft.errors import ContextError

if TYPE_CHECKING:
    import ray.data

__all__ = ["map_batches"]

Batch = dict[str, NDArray[Any]]
Request = Callable[[dict[str, Any]], dict[str, Any]]
_FILES: list[Any] = []
"""Actors that give files to machines as long as this process lives; a dataset may run at any
time."""


def map_batches(
    ds: ray.data.Dataset,
    model: str | os.PathLike[str],
    *,
    request: Request | None = None,
    answer: str = "answer",
    replicas: int | tuple[int, int] = 1,
    threads: int = 1,
    parallel: int = 8,
    batch_size: int = 64,
    kept: str | os.PathLike[str] | None = None,
    load: Mapping[str, Any] | None = None,
    **body: Any,
) -> ray.data.Dataset:
    """A dataset with the rows of `ds` and, in each, the model's answer. Nothing runs before the
    result is read or written, as in all of Ray Data, which shows progress, keeps rows that nobody
    has taken yet within its memory, and starts actors that died again.

    A row is asked by what it has of `messages` (a chat), `prompt` (a text) or `input` (an
    embedding), or by what `request` makes of it: the body of a request to the OpenAI API. `body`
    has further fields for every row, such as `max_tokens` and `temperature`.

    The result has two columns more: `answer`, the text or the vector, and `answer` with `_error`
    behind it, the reason where there is none, else an empty text. `replicas` is the number of
    actors, or the least and the most. Each has `threads` threads and as many CPUs of the cluster,
    and writes `parallel` texts at a time of batches of `batch_size` rows. `load` has further
    arguments for loading, such as `n_ctx` for all texts together, `devices`, or `embeddings` (True,
    where a model that writes is asked for vectors).

    With `kept`, a folder that all machines see, answers are written there as they come. A later run
    with the same model and requests, after whatever end of this one, takes them from there. Rows
    with an error are asked again. A column `id` tells rows apart that ask the same.

    Rows are in the order of `ds` if `ray.data.DataContext.get_current().execution_options` has
    `preserve_order`, else in that in which batches end.

    Raises WeftError if an extra is missing, FormatError for a file that cannot be read, and
    ContextError for a number out of range."""
    import_ray("weft.ray")
    least, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    for name, value in (("replicas", least), ("threads", threads), ("parallel", parallel),
                        ("batch_size", batch_size)):  # fmt: skip
        if value < 1 or most < least:
            raise ContextError(
                f"is {value}; it must be 1 or more, and the least first", argument=name
            )
    join(what="weft.ray")
    from ray.data import ActorPoolStrategy

    from weft.backends.cpu.threads import ThreadOptions
    from weft.llm.hub import local_path
    from weft.serve.options import ServeOptions
    from weft.serve.replicas import describe
    from weft.serve.replicas.deployment import files_actor

    options = ServeOptions(parallel=parallel, max_queue=16 * parallel)
    arguments: dict[str, Any] = {"threads": ThreadOptions(n_threads=threads), **(load or {})}
    recipe = describe(local_path(model), options, arguments)
    folder = None if kept is None else os.path.abspath(kept)
    files = files_actor(recipe)
    if files is not None:
        _FILES.append(files)
    return ds.map_batches(
        _Answerer,
        fn_constructor_args=(
            recipe,
            "" if files is None else files.name,
            request,
            body,
            answer,
            folder,
        ),
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        batch_size=batch_size,
        batch_format="numpy",
        num_cpus=threads,
    )


class _Answerer:
    """An actor of Ray Data."""

    def __init__(
        self,
        recipe: Any,
        files: str,
        request: Request | None,
        body: dict[str, Any],
        answer: str,
        folder: str | None,
    ) -> None:
        from weft.serve.replicas.deployment import reader
        from weft.serve.replicas.loaded import Loaded

        self._loaded = Loaded(recipe, reader(files))
        self._parallel = 2 * recipe.options.parallel
        self._request, self._body, self._answer = request, body, answer
        self._about = "".join(sorted(files.hash for files in recipe.files.values()))
        self._kept = None if folder is None else KeptRows(Path(folder), uuid4().hex)
        self._loop = asyncio.new_event_loop()

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its answers."""
        rows = list(_rows(batch))
        found = self._loop.run_until_complete(self._all(rows))
        if self._kept is not None:
            self._kept.sync()
        answers = np.empty(len(found), dtype=object)
        answers[:] = [answer for answer, _ in found]
        errors = np.array([error for _, error in found], dtype=object)
        return batch | {self._answer: answers, f"{self._answer}_error": errors}

    async def _all(self, rows: list[dict[str, Any]]) -> list[tuple[Any, str]]:
        room = asyncio.Semaphore(self._parallel)

        async def one(row: dict[str, Any]) -> tuple[Any, str]:
            async with room:
                return await self._one(row)

        return await asyncio.gather(*map(one, rows))

    async def _one(self, row: dict[str, Any]) -> tuple[Any, str]:
        try:
            body = self._body | (_usual(row) if self._request is None else self._request(row))
            url = next(url for name, url in _urls().items() if name in body)
        except StopIteration:
            return None, "the row has neither messages nor a prompt nor an input"
        text = json.dumps([self._about, url, body, row.get("id")], sort_keys=True, default=str)
        key = int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())
        if self._kept is not None and (before := self._kept.get(key)) is not None:
            return before[0], ""
        while (answer := await self._loaded.ask(url, body)).status == 429:
            await asyncio.sleep(0.1)
        if answer.status >= 300:
            return None, str(answer.body["error"]["message"])
        value = _value(answer.body)
        if self._kept is not None:
            self._kept.put(key, [value])
        return value, ""


def _rows(batch: Batch) -> Iterator[dict[str, Any]]:
    """The rows of a batch with values of Python."""
    for i in range(len(next(iter(batch.values()), ()))):
        yield {name: _plain(column[i]) for name, column in batch.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def _usual(row: dict[str, Any]) -> dict[str, Any]:
    return next(({name: row[name]} for name in _urls() if row.get(name)), {})


@cache
def _urls() -> dict[str, str]:
    """Fields of requests, and the endpoints that take them."""
    from weft.serve.endpoints import ENDPOINTS

    return {endpoint.row: endpoint.path for endpoint in ENDPOINTS if endpoint.row}


def _value(body: dict[str, Any]) -> Any:
    """The text or the vector of an answer."""
    if "data" in body:
        return body["data"][0]["embedding"]
    choice = body["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]

"""A request to a replica: parts of its answer, and another try where nothing was sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException

from weft.cluster.prefixes import Block
from weft.serve.errors import ApiError
from weft.serve.log import logger
from weft.serve.replicas.loaded import Call, Part

__all__ = ["Counts", "answer_of"]

TRIES = 3
"""Replicas that a request is given to, one after another, if they die before they answer."""


class Counts(Protocol):
    """Counts requests."""

    n_open: int
    n_retried: int


async def answer_of(
    counts: Counts, handle: Any, call: Call, blocks: Sequence[Block]
) -> AsyncIterator[Part]:
    """Yields the parts of an answer. If it is closed early, the replica ends the request.

    Raises ApiError if the replica dies in the midst of its answer, or too many before."""
    counts.n_open += 1
    try:
        for n_tries in range(1, TRIES + 1):
            began = False
            response = handle.answer.remote(call, blocks=blocks)
            try:
                async for part in response:
                    began = True
                    yield part
                response = None
                return
            except RayActorError:
                response = None
                logger.error(
                    "a replica died while it answered %s%s", call.path,
                    "" if began or n_tries == TRIES else "; another one answers",
                )  # fmt: skip
                if began:
                    raise ApiError(
                        502,
                        "the replica that wrote this answer died; ask again",
                        code="replica_died",
                    ) from None
                counts.n_retried += n_tries < TRIES
            except (RayError, RayServeException) as error:
                response = None
                logger.error("a replica failed on %s: %s", call.path, _last_line(error))
                raise ApiError(
                    500, "the replica failed on this request; the server's log says more"
                ) from None
            finally:
                if response is not None:
                    response.cancel()
        raise ApiError(
            502, f"{TRIES} replicas died on this request; it is not tried again",
            code="replica_died",
        )  # fmt: skip
    finally:
        counts.n_open -= 1


def _last_line(error: BaseException) -> str:
    return (str(error).strip().split("\n") or [""])[-1][:300]

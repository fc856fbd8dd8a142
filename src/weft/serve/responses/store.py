"""Responses that are kept in memory for `previous_response_id` and `/v1/responses/{id}`, up to a
number of bytes and an age. Those that were written longest ago go first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import monotonic
from typing import Any, Protocol
from weakref import WeakValueDictionary

from starlette.requests import HTTPConnection

from weft.records import dataclass
from weft.serve.errors import ApiError

MOST_BYTES = 128 << 20
"""Maximum bytes of all kept responses, as JSON."""
MOST_SECONDS = 24 * 3600.0
"""Age in seconds at which a response is dropped."""

Items = list[dict[str, Any]]


def owner_of(http: HTTPConnection) -> object:
    """The owner of the responses that a request may see: the name of its key."""
    return http.scope.get("state", {}).get("key")


class Running(Protocol):
    """A response that is being written."""

    id: str
    owner: object

    @property
    def ended(self) -> bool:
        """True if nothing more is written."""

    def so_far(self) -> dict[str, Any]:
        """The response as far as it is written."""

    def cancel(self) -> None:
        """Ends it as it is."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A response and its conversation, as JSON, because objects of Python may be much larger."""

    answer: bytes
    rounds: tuple[bytes, ...]
    """Lists of items: the input and the output of each earlier response, and the new input."""
    owner: object
    """The name of the key of the request; other keys do not see the response."""
    outputs: tuple[str, ...]
    """The ids of the items of the response."""
    at: float
    """The time of `monotonic` at which the response was kept."""

    @property
    def response(self) -> dict[str, Any]:
        """The response."""
        response: dict[str, Any] = json.loads(self.answer)
        return response

    @property
    def items(self) -> Items:
        """The conversation that the response answers."""
        return [item for part in self.rounds for item in json.loads(part)]

    @property
    def n_bytes(self) -> int:
        """Bytes that this holds. What several conversations share counts in each."""
        return len(self.answer) + sum(map(len, self.rounds))


class KeptResponses:
    """The kept responses by id. For the thread of the event loop alone."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_seconds: float = MOST_SECONDS) -> None:
        self._most_bytes, self._most_seconds = most_bytes, most_seconds
        self._all: dict[str, Kept] = {}  # the oldest first
        self._homes: dict[str, str] = {}  # ids of responses by the ids of their items
        self.running: WeakValueDictionary[str, Running] = WeakValueDictionary()
        """Responses that are being written, and some that have ended, by id."""
        self.n_bytes = 0
        """Bytes of all kept responses."""

    def put(self, response: dict[str, Any], new: Items, before: Kept | None, owner: object) -> None:
        """Keeps a response to the items `new`, which follow the response `before`. One that alone
        has too many bytes goes at once."""
        rounds: tuple[bytes, ...] = (_encoded(new),)
        if before is not None:
            output = _encoded(before.response["output"])
            rounds = (*before.rounds, output, *rounds)
        outputs = tuple(item["id"] for item in response["output"])
        id_ = response["id"]
        self._take(id_, Kept(_encoded(response), rounds, owner, outputs, monotonic()))

    def take(self, kept: Kept) -> None:
        """Keeps what another process has kept."""
        id_ = kept.response["id"]
        if id_ not in self._all:  # clocks of processes differ
            now = Kept(kept.answer, kept.rounds, kept.owner, kept.outputs, monotonic())
            self._take(id_, now)

    def _take(self, id_: str, kept: Kept) -> None:
        self._all[id_] = kept
        self._homes |= dict.fromkeys(kept.outputs, id_)
        self.n_bytes += kept.n_bytes
        self._trim()

    def get(self, id_: str, owner: object) -> Kept:
        """A response. Raises ApiError if it is not kept, or is another's."""
        self._trim()
        kept = self._all.get(id_)
        if kept is None or kept.owner != owner:
            raise ApiError(
                404, f"there is no response {id_[:80]!r}; it was not stored, was deleted, or had "
                "to make room for newer ones", "response_id", "not_found",
            )  # fmt: skip
        return kept

    def before(self, id_: str, owner: object) -> Kept:
        """The response that a request goes on from. Raises ApiError, with the code by which clients
        know that they must send the whole conversation, if it is not kept, or is another's."""
        try:
            return self.get(id_, owner)
        except ApiError:
            raise ApiError(
                400, f"the previous response {id_[:80]!r} was not found: it was not stored, was "
                "deleted, or had to make room for newer ones; send the whole conversation",
                "previous_response_id", "previous_response_not_found",
            ) from None  # fmt: skip

    def written(self, id_: str) -> Kept | None:
        """A response, whosever it is; None if it is not kept."""
        return self._all.get(id_)

    def written_now(self, id_: str, owner: object) -> Running | None:
        """The response of this id, if it is being written and is not another's."""
        writer = self.running.get(id_)
        return writer if writer and writer.owner == owner and not writer.ended else None

    def delete(self, id_: str, owner: object) -> None:
        """Deletes a response; see `get`."""
        self.get(id_, owner)
        self._drop(id_)

    def home_of(self, id_: str, owner: object) -> Kept | None:
        """The response with the item that has this id, or None."""
        kept = self._all.get(self._homes.get(id_, ""))
        return None if kept is None or kept.owner != owner else kept

    def item(self, id_: str, owner: object) -> dict[str, Any] | None:
        """The item of a response that has this id, or None."""
        kept = self.home_of(id_, owner)
        if kept is None:
            return None
        output: Items = kept.response["output"]
        return next(item for item in output if item["id"] == id_)

    def _drop(self, id_: str) -> None:
        kept = self._all.pop(id_)
        self.n_bytes -= kept.n_bytes
        for output in kept.outputs:
            del self._homes[output]

    def _trim(self) -> None:
        oldest = monotonic() - self._most_seconds
        for id_, kept in list(self._all.items()):
            if self.n_bytes <= self._most_bytes and kept.at > oldest:
                return
            self._drop(id_)


def _encoded(value: dict[str, Any] | Sequence[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

"""The hashes of a prompt's blocks, and the replicas that have computed them.

A prompt is cut into blocks of text, each with a hash of all text up to its end. A message of a chat
ends a block, so that the second turn of a chat has the blocks of the first one. Text stands for
tokens here: who routes requests needs no tokenizer, and equal text is equal tokens.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar

BLOCK_CHARS = 256
"""Maximum number of characters in a block."""
MOST_BLOCKS = 1024
"""Maximum number of blocks of a prompt that are compared: 256 Ki characters."""
KNOWN_BLOCKS = 1 << 15
"""Maximum number of blocks remembered for a replica; the least recently used ones go first."""
_IN_FRONT = ("model", "tools", "system", "instructions")
"""Fields of a body that stand in front of its prompt, or choose the adapter."""

Replica = TypeVar("Replica", bound=Hashable)


class Block(NamedTuple):
    """The end of a block in a prompt."""

    hash: int
    """64 bits of a hash of the whole text up to the end of this block."""
    n_chars: int
    """Number of characters up to the end of this block."""


def blocks_of(body: Mapping[str, Any]) -> list[Block]:
    """The blocks of the prompt of a request to any of the server's APIs; none where it has none."""
    parts = list(_parts(body))
    if not parts:
        return []
    front = {name: body[name] for name in _IN_FRONT if body.get(name)}
    chain = blake2b(_text(front).encode("utf-8", "surrogatepass"), digest_size=8)
    blocks: list[Block] = []
    n_chars = 0
    for part in parts:
        for start in range(0, len(part), BLOCK_CHARS):
            if len(blocks) == MOST_BLOCKS:
                return blocks
            piece = part[start : start + BLOCK_CHARS]
            chain.update(piece.encode("utf-8", "surrogatepass"))
            n_chars += len(piece)
            blocks.append(Block(int.from_bytes(chain.copy().digest()), n_chars))
    return blocks


def _parts(body: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a prompt in order: messages, items, or one text."""
    for name in ("messages", "input", "prompt"):
        value = body.get(name)
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            for message in value:
                yield _message(message)
            return
        if value:
            yield _text(value)
            return


def _message(message: Any) -> str:
    """A message by what a template shows of it; ids and the like change from turn to turn."""
    if not isinstance(message, dict):
        return _text(message)
    kept = {name: message[name] for name in ("role", "name", "tool_calls") if message.get(name)}
    return f"\0{_text(kept)}\1{_content(message.get('content', message.get('output', '')))}"


def _content(content: Any) -> str:
    """The text of a content; parts that are texts count as the text that they hold."""
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else None for part in content)
        return "".join(
            text if isinstance(text, str) else _text(part)
            for text, part in zip(texts, content, strict=True)
        )
    return _text(content)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


class KnownPrefixes(Generic[Replica]):
    """The blocks that each replica has computed lately. For one thread."""

    def __init__(self, most: int = KNOWN_BLOCKS) -> None:
        """`most` is the most blocks that are remembered of each replica."""
        self._most = most
        self._of: dict[Replica, OrderedDict[int, None]] = {}

    def note(self, replica: Replica, blocks: Sequence[Block]) -> None:
        """Notes that a replica computes a prompt with these blocks."""
        known = self._of.setdefault(replica, OrderedDict())
        for block in reversed(blocks):  # the first blocks, which most prompts share, stay longest
            known[block.hash] = None
            known.move_to_end(block.hash)
        while len(known) > self._most:
            known.popitem(last=False)

    def known_chars(self, replica: Replica, blocks: Sequence[Block]) -> int:
        """The characters at the start of a prompt that a replica has computed."""
        known = self._of.get(replica)
        if not known:
            return 0
        low, high = 0, len(blocks)  # who knows a block knows those in front of it, as a rule
        while low < high:
            middle = (low + high) // 2
            if blocks[middle].hash in known:
                low = middle + 1
            else:
                high = middle
        return blocks[low - 1].n_chars if low else 0

    def keep_only(self, replicas: Iterable[Replica]) -> None:
        """Forgets all other replicas."""
        left = set(replicas)
        for gone in self._of.keys() - left:
            del self._of[gone]

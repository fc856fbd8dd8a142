"""Which replica gets a request: blocks of prompts, who knows them, and the bound on imbalance."""

from __future__ import annotations

from typing import Any

from weft.cluster.prefixes import BLOCK_CHARS, MOST_BLOCKS, KnownPrefixes, blocks_of
from weft.cluster.routing import CHOSEN_SECONDS, Routing, routed_counts

SHORT = {"role": "system", "content": "You help."}
SYSTEM = {"role": "system", "content": "You are a clock. " * 40}


def chat(*texts: str, system: Any = SYSTEM, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": [system, *turns], **fields}


def test_a_second_turn_begins_with_the_blocks_of_the_first() -> None:
    first, second = blocks_of(chat("Hi")), blocks_of(chat("Hi", "It is one.", "And now?"))
    assert second[: len(first)] == first and len(second) == len(first) + 2
    other = blocks_of(chat("Ho", "It is one.", "And now?"))
    assert other[: len(first) - 1] == first[:-1]  # the system prompt alone
    assert not {block.hash for block in other[len(first) - 1 :]} & {b.hash for b in second}


def test_parts_of_a_content_are_the_text_that_they_hold() -> None:
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}],
    }
    assert blocks_of({"messages": [parts]}) == blocks_of(chat("Hi") | {
        "messages": [{"role": "user", "content": "Hi"}]})  # fmt: skip
    image = {"type": "image_url", "image_url": {"url": "data:1"}}
    assert blocks_of({"messages": [{"role": "user", "content": [image]}]})


def test_what_stands_in_front_counts() -> None:
    plain = blocks_of(chat("Hi"))
    for fields in ({"model": "adapter"}, {"tools": [{"type": "function"}]}, {"system": "Be kind."}):
        assert not {b.hash for b in blocks_of(chat("Hi", **fields))} & {b.hash for b in plain}


def test_prompts_of_other_apis() -> None:
    long = "x" * (2 * BLOCK_CHARS + 1)
    for body in ({"prompt": long}, {"input": long}):
        blocks = blocks_of(body)
        assert [block.n_chars for block in blocks] == [BLOCK_CHARS, 2 * BLOCK_CHARS, len(long)]
        assert blocks_of(dict.fromkeys(body, long + "y"))[:2] == blocks[:2]
    assert blocks_of({"prompt": [1, 2, 3]}) and blocks_of({"prompt": "\ud800"})
    assert blocks_of({}) == blocks_of({"prompt": ""}) == []
    assert len(blocks_of({"prompt": "x" * BLOCK_CHARS * (MOST_BLOCKS + 5)})) == MOST_BLOCKS


def test_known_blocks_are_bounded_and_the_first_ones_stay_longest() -> None:
    known: KnownPrefixes[str] = KnownPrefixes(most=8)
    one, two = (blocks_of({"prompt": letter * BLOCK_CHARS * 6}) for letter in "ab")
    known.note("r", one)
    known.note("r", two)
    assert known.known_chars("r", two) == 6 * BLOCK_CHARS
    assert known.known_chars("r", one) == 2 * BLOCK_CHARS
    assert known.known_chars("other", one) == 0
    known.keep_only(["other"])
    assert known.known_chars("r", two) == 0


def run(routing: Routing[str], request: str, body: dict[str, Any], replicas: str = "abc") -> str:
    """Gives a request to the replica that comes first."""
    blocks = blocks_of(body)
    first = routing.ranked(request, replicas, blocks)[0]
    routing.routed(request, first, blocks)
    return first


def test_new_chats_spread_and_second_turns_follow_the_first() -> None:
    """The few words that all chats begin with keep none of them together."""
    routing: Routing[str] = Routing(most_ahead=2)
    firsts = {}
    for i in range(6):
        firsts[i] = run(
            routing,
            f"{i}",
            chat(f"chat {i}, about clouds, and rain, and more of both", system=SHORT),
        )
        routing.ended(f"{i}")
    assert sorted(firsts.values()) == [*"aabbcc"]
    before = routed_counts()
    for i, first in firsts.items():
        body = chat(
            f"chat {i}, about clouds, and rain, and more of both", "Yes.", "And?", system=SHORT
        )
        assert run(routing, f"{i} again", body) == first
        routing.ended(f"{i} again")
    assert routed_counts()["prefix"] == before["prefix"] + 6


def test_a_prefix_that_all_ask_for_does_not_fill_one_replica() -> None:
    routing: Routing[str] = Routing(most_ahead=2)
    replicas = [run(routing, f"{i}", chat(f"{i}")) for i in range(30)]
    counts = {one: replicas.count(one) for one in "abc"}
    assert max(counts.values()) - min(counts.values()) <= 3, counts
    assert routed_counts()["balance"] > 0


def test_requests_on_their_way_count_for_a_while() -> None:
    now = [0.0]
    routing: Routing[str] = Routing(most_ahead=1, clock=lambda: now[0])
    chosen = [routing.ranked(f"{i}", "ab", [])[0] for i in range(4)]
    assert sorted(chosen) == ["a", "a", "b", "b"]
    now[0] += CHOSEN_SECONDS + 1
    routing.routed("x", "a", [])
    assert routing.ranked("y", "ab", [])[0] == "b"


def test_a_new_replica_is_not_flooded_and_an_old_one_is_forgotten() -> None:
    routing: Routing[str] = Routing(most_ahead=1)
    for i in range(10):
        run(routing, f"{i}", {}, "ab")
        routing.ended(f"{i}")
    run(routing, "open", {}, "b")
    routing.keep_only({"a", "c"})
    taken = [run(routing, f"new {i}", {}, "ac") for i in range(4)]
    assert sorted(taken) == ["a", "a", "c", "c"]

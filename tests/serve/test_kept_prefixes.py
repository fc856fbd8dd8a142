"""Conversations that were displaced from their slots come back, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.llm.prefix_texts import make_lasting
from tests.serve.in_process import Server
from weft.llm import LLM

SIZES = ("--parallel", 1, "-c", 256, "-t", 1)


def ask(server: Server, messages: list[Any]) -> tuple[str | None, int]:
    """The answer, and the number of tokens that were kept."""
    got = server.client.chat.completions.create(
        model="m", messages=messages, max_tokens=5, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert got.usage is not None and got.usage.prompt_tokens_details is not None
    cached = got.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return got.choices[0].message.content, cached


def test_conversations_take_turns_and_outlive_the_server(tmp_path: Path) -> None:
    path = make_lasting("qwen35", tmp_path)
    talks: list[list[Any]] = [
        [{"role": "user", "content": text * 6}] for text in ("the abc ", "teh b ")
    ]
    with Server(path, *SIZES, "--cache-dir", tmp_path / "kept", "--cache-ram", 8) as server:
        for talk in talks:
            _, n = ask(server, talk)
            assert n < 4
        for talk in talks:
            talk += [{"role": "assistant", "content": "he"}, {"role": "user", "content": "a b"}]
            _, n = ask(server, talk)
            assert n > 16
        numbers = server.metrics()
        assert numbers["restored_texts_total"] == 2
        assert numbers["prefix_bytes_limit"] == 8 << 20
        assert 0 < numbers["prefix_bytes"] < 8 << 20
        assert numbers["checkpoints"] >= 2 and numbers["kept_texts"] >= 1
    fresh = LLM(path, n_ctx=256, n_threads=1, cache_ram=0)
    with Server(path, *SIZES, "--cache-dir", tmp_path / "kept") as server:
        for talk in talks:
            talk += [{"role": "assistant", "content": "he"}, {"role": "user", "content": "c"}]
            answer, n = ask(server, talk)
            assert n > 32
            assert answer == fresh.chat(talk, max_tokens=5, temperature=0, ignore_eos=True)
        assert server.metrics()["prefix_files_read_total"] == 2

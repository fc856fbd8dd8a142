"""Code as a user writes it; `test_typing.py` has mypy read it, nothing runs it."""

from collections.abc import Iterator
from typing import assert_type

import weft


def texts(path: str) -> None:
    with weft.LLM(path, n_ctx=512, n_threads=2, devices=["cpu"]) as llm:
        assert_type(llm, weft.LLM)
        assert_type(llm.generate("a", max_tokens=3, temperature=0.5), str)
        assert_type(llm.generate([1, 2], stream=False), str)
        assert_type(llm.generate("a", stream=True, stop=["b"]), Iterator[str])
        assert_type(llm.generate(["a", "b"], top_k=3), list[str])
        assert_type(llm.generate([[1], [2]], stream=True), Iterator[tuple[int, str]])
        messages = [{"role": "user", "content": "a"}]
        assert_type(llm.chat(messages, seed=1), str)
        assert_type(llm.chat(messages, stream=True, cache_prompt=False), Iterator[str])
        llm.generate("a", temp=1)  # type: ignore[call-overload]
        llm.generate("a", top_k="3")  # type: ignore[call-overload]
    weft.LLM(path, num_ctx=3)  # type: ignore[call-arg]

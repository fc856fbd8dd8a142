"""Code as a user writes it; `test_typing.py` has mypy read it, nothing runs it."""

from typing import assert_type

import numpy as np

import weft
from weft.llm import Stream


def texts(path: str) -> None:
    with weft.LLM(path, n_ctx=512, n_threads=2, devices=["cpu"]) as llm:
        assert_type(llm, weft.LLM)
        assert_type(llm.generate("a", max_tokens=3, temperature=0.5), weft.Completion)
        assert_type(llm.generate([1, 2], stream=False), weft.Completion)
        assert_type(llm.generate("a", stream=True, stop=["b"]), Stream[str])
        assert_type(llm.generate(["a", "b"], top_k=3), list[weft.Completion])
        assert_type(llm.generate([[1], [2]], stream=True), Stream[tuple[int, str]])
        messages = [{"role": "user", "content": "a"}]
        assert_type(llm.chat(messages, seed=1), weft.Completion)
        assert_type(llm.chat(messages, stream=True, cache_prompt=False), Stream[str])
        assert_type(llm.chat([messages, messages]), list[weft.Completion])
        llm.generate("a", temp=1)  # type: ignore[call-overload]
        llm.generate("a", top_k="3")  # type: ignore[call-overload]
    weft.LLM(path, num_ctx=3)  # type: ignore[call-arg]


def graphs() -> None:
    n = weft.Sym("n", 1, 8)
    x, h = weft.input("x", (n, 4)), weft.state("h", (4,), init=np.ones(4))
    y = ((x + h) @ weft.constant([[1.0] * 4], "w").T * 2 - 1).as_output("y")
    assert_type(y, weft.Tensor)
    session = weft.Session(
        weft.compile(weft.Graph(y, weft.graph.cpy(x, h)), devices=["cpu"], n_threads=1)
    )
    session.run(np.ones((2, 4), np.float32))
    session.run({"x": np.ones((2, 4), np.float32)})
    session.state("h").write([1.0] * 4)
    session.state("h").reset()
    assert_type(session.explain(), str)

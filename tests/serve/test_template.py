"""Chats are tokenized by the model's own template, with one BOS."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.llm.tiny import metadata, write_model
from weft.frontends.gguf import open_gguf
from weft.llm import Tokenizer
from weft.serve.options import ServeOptions
from weft.serve.prompts import Prompts
from weft.serve.schema import ChatBody
from weft.serve.template import find_template


@pytest.mark.parametrize("bos", ["{{ bos_token }}", ""])
def test_the_models_template(tmp_path: Path, bos: str) -> None:
    source = bos + "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    meta = metadata(**{"tokenizer.chat_template": source})
    file = open_gguf(write_model(tmp_path / "m.gguf", meta))
    tokenizer = Tokenizer.from_gguf(file)
    prompts = Prompts(tokenizer, find_template(file, tokenizer), ServeOptions())
    body = ChatBody.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "the abc"}], "max_tokens": 4}
    )
    (request,) = prompts.of_chat(body)
    assert list(request.prompt) == tokenizer.encode("<user>the abc")

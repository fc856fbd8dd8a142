"""The endpoints of llama.cpp's server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.in_process import DEMO, ROOT, Server
from weft.llm import LLM

PROMPT = "Count from 8 to 11?"
SHAPES = ROOT / "examples" / "shapes"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "-np", 3, "-t", 1, "--embeddings") as running:
        yield running


def post(server: Server, path: str, **body: Any) -> Any:
    status, _, answer = server.call("POST", path, body)
    assert status == 200, answer
    return answer


def refused(server: Server, path: str, **body: Any) -> tuple[int, str]:
    status, _, answer = server.call("POST", path, body)
    assert status >= 400, answer
    return status, answer["error"]["message"]


def stream(server: Server, path: str, **body: Any) -> list[dict[str, Any]]:
    status, _, text = server.call("POST", path, body | {"stream": True})
    assert status == 200, text
    rows = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(row) for row in rows if row != "[DONE]"]


def test_a_completion(server: Server) -> None:
    answer = post(server, "/completion", prompt=PROMPT, n_predict=6, temperature=0,
                  return_tokens=True)  # fmt: skip
    assert answer["content"] == " 8 9 1" and answer["stop"] is True
    assert answer["stop_type"] == "limit" and answer["stopping_word"] == ""
    assert answer["tokens_predicted"] == len(answer["tokens"]) == 6
    assert answer["tokens_evaluated"] == 10 and answer["truncated"] is False
    assert answer["model"] == "weft-demo" and answer["prompt"].endswith(PROMPT)
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["top_k"], settings["min_p"]) == (6, 40, 0.05)
    timings = answer["timings"]
    assert timings["predicted_n"] == 6 and timings["prompt_n"] + timings["cache_n"] == 10
    assert timings["prompt_per_second"] > 0 and timings["predicted_ms"] > 0
    again = post(server, "/completion", prompt=PROMPT, n_predict=6, temperature=0)
    assert again["tokens"] == [] and again["tokens_cached"] > 0
    fresh = post(server, "/completion", prompt=PROMPT, n_predict=1, cache_prompt=False)
    assert fresh["tokens_cached"] == 0 == fresh["timings"]["cache_n"]


def test_why_a_text_ended(server: Server) -> None:
    body = {"prompt": PROMPT, "temperature": 0}
    word = post(server, "/completion", **body, stop=["9"])
    assert (word["content"], word["stop_type"], word["stopping_word"]) == (" 8 ", "word", "9")
    end = post(server, "/completion", **body)
    assert end["stop_type"] == "eos" and end["has_new_line"] is True
    full = post(server, "/completion", **body, ignore_eos=True)
    assert full["stop_type"] == "limit" and full["truncated"] is True
    nothing = post(server, "/completion", **body, n_predict=0)
    assert nothing["content"] == "" and nothing["tokens_predicted"] == 0


def test_prompts_of_every_shape(server: Server) -> None:
    ids = post(server, "/tokenize", content=PROMPT)["tokens"]
    body = {"n_predict": 6, "temperature": 0}
    want = post(server, "/completion", prompt=PROMPT, **body)["content"]
    head = post(server, "/tokenize", content="Count from 8")["tokens"]
    tail = post(server, "/tokenize", content=" to 11?", add_special=False)["tokens"]
    shapes: list[Any] = [ids, ["Count from 8", *tail], [*head, " to 11?"]]
    for shape in [*shapes, {"prompt_string": PROMPT}]:
        assert post(server, "/completion", prompt=shape, **body)["content"] == want
    several = post(server, "/completion", prompt=[PROMPT, ids, {"prompt_string": PROMPT}], **body)
    assert [row["content"] for row in several] == [want] * 3
    assert [row["index"] for row in several] == [0, 1, 2]
    assert isinstance(post(server, "/completion", prompt=[ids], **body), list)
    two = post(server, "/completion", prompt=PROMPT, n_cmpl=2, **body)
    assert [row["content"] for row in two] == [want] * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt is missing; it must be a text, token ids"),
        ({"prompt": []}, "prompt must be a text"),
        ({"prompt": 3}, "prompt must be a text"),
        ({"prompt": [1, None]}, "prompt must be a text"),
        ({"prompt": [1, True]}, "prompt must be a text"),
        ({"prompt": [1, -4]}, "prompt must be a text"),
        ({"prompt": [1, 10_000]}, "the last is 478"),
        ({"prompt": {"multimodal_data": ["a"]}}, "multimodal_data is not read here"),
        ({"prompt": "a" * 100_000}, "but the context holds"),
        ({"prompt": "a", "post_sampling_probs": True}, "is not computed here"),
        ({"prompt": "a", "logit_bias": [[1]]}, "a pair is a token"),
        ({"prompt": "a", "logit_bias": 3}, "is a list of at most"),
        ({"prompt": "a", "n_predict": -2}, "n_predict is -2; it must be -1 or more"),
        ({"prompt": "a", "n_probs": -1}, "n_probs is -1; it must be 0"),
        ({"prompt": ["a"] * 17}, "this server allows 16"),
    ],
)
def test_what_is_refused(server: Server, body: dict[str, Any], message: str) -> None:
    status, text = refused(server, "/completion", **body)
    assert status == 400 and message in text


def test_a_stream(server: Server) -> None:
    body = {"prompt": PROMPT, "n_predict": 9, "temperature": 0}
    want = post(server, "/completion", **body, return_tokens=True)
    *parts, last = stream(server, "/completion", **body, timings_per_token=True, n_probs=2)
    assert "".join(part["content"] for part in parts) == want["content"]
    assert [i for part in [*parts, last] for i in part["tokens"]] == want["tokens"]
    assert all(part["stop"] is False and "timings" in part for part in parts)
    shown = [row for part in parts for row in part["completion_probabilities"]]
    assert [row["id"] for row in shown] == want["tokens"]
    assert last["stop"] is True and last["stop_type"] == "limit"
    assert last["tokens_predicted"] == 9 and last["timings"]["predicted_n"] == 9


def test_probabilities_and_biases(server: Server) -> None:
    body = {"prompt": PROMPT, "n_predict": 4, "temperature": 0}
    answer = post(server, "/completion", **body, n_probs=3)
    rows = answer["completion_probabilities"]
    assert len(rows) == 4 and all(len(row["top_logprobs"]) == 3 for row in rows)
    assert rows[0]["id"] == rows[0]["top_logprobs"][0]["id"]
    first = rows[0]["id"]
    for biases in ([[first, False]], {str(first): -100}, [[first, -100.0]]):
        other = post(server, "/completion", **body, return_tokens=True, logit_bias=biases)
        assert other["tokens"][0] != first


def test_fields_of_a_response(server: Server) -> None:
    names = ["content", "generation_settings/n_predict", "timings/prompt_n", "nothing"]
    answer = post(server, "/completion", prompt="a", n_predict=2, response_fields=names)
    assert sorted(answer) == ["content", "n_predict", "prompt_n"]


def test_infill_needs_a_model_for_it(server: Server) -> None:
    status, text = refused(server, "/infill", input_prefix="a", input_suffix="b")
    assert status == 501 and "no tokens for infilling" in text
    status, text = refused(server, "/infill", input_prefix="a")
    assert status == 400 and "input_suffix is missing" in text


def test_props(server: Server) -> None:
    status, _, props = server.call("GET", "/props")
    assert status == 200
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 256 and settings["params"]["temperature"] == 0.8
    assert props["total_slots"] == 3 and props["model_path"] == str(DEMO)
    assert props["modalities"] == {"vision": False, "audio": False}
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert "im_start" in props["chat_template"] and props["build_info"].startswith("weft ")


def test_slots(server: Server) -> None:
    idle = server.call("GET", "/slots")[2]
    assert [row["id"] for row in idle] == [0, 1, 2]
    assert all(not row["is_processing"] and row["n_ctx"] == 256 for row in idle)
    body = {"prompt": "a", "ignore_eos": True, "n_predict": 250, "stream": True}
    connection = server.connect()
    connection.request(
        "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    answer.readline()
    busy = [row for row in server.call("GET", "/slots")[2] if row["is_processing"]]
    answer.read()
    connection.close()
    if busy:  # it may have ended before
        assert busy[0]["params"]["n_predict"] == 250 and busy[0]["next_token"]["n_decoded"] > 0
        assert "prompt" not in busy[0]


def test_templates_and_tokens(server: Server) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    prompt = post(server, "/apply-template", messages=messages)["prompt"]
    assert prompt == LLM(DEMO, n_threads=1).chat_template.render(messages)
    rows = post(server, "/tokenize", content="á 8", with_pieces=True, add_special=False)["tokens"]
    pieces = b"".join(
        row["piece"].encode() if isinstance(row["piece"], str) else bytes(row["piece"])
        for row in rows
    )
    assert pieces.decode() == "á 8" and any(isinstance(row["piece"], list) for row in rows)
    ids = [row["id"] for row in rows]
    assert post(server, "/detokenize", tokens=ids)["content"] == "á 8"


def test_embedding(server: Server) -> None:
    row = post(server, "/embedding", content="a b")[0]["embedding"]
    (row,) = row
    want = post(server, "/v1/embeddings", input="a b")["data"][0]["embedding"]
    assert row == want
    plain = post(server, "/embedding", content=["a b", "c"], embd_normalize=1)
    assert sum(map(abs, plain[0]["embedding"][0])) == pytest.approx(1, abs=1e-5)
    assert refused(server, "/embedding", content="a", embd_normalize=-1)[0] == 400


def test_timings_of_chats(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5, "temperature": 0}
    answer = post(server, "/v1/chat/completions", **body)
    assert answer["timings"]["predicted_n"] == 5
    usage = answer["usage"]
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    *parts, last = stream(server, "/v1/chat/completions", **body)
    assert last["timings"]["predicted_n"] == 5
    assert not any("timings" in part for part in parts)
    *parts, last = stream(server, "/v1/chat/completions", **body, timings_per_token=True)
    assert any("timings" in part for part in parts)


def test_metrics_of_llama_server(server: Server) -> None:
    post(server, "/completion", prompt="a", n_predict=2)
    metrics = server.metrics()
    assert metrics["llamacpp:tokens_predicted_total"] >= 2
    assert metrics["llamacpp:prompt_seconds_total"] > 0
    assert metrics["llamacpp:requests_processing"] == 0


def test_infilling(tmp_path: Path) -> None:
    """The prompt has the roles of the vocabulary in order."""
    from weft.frontends.models import open_model
    from weft.llm import Tokenizer
    from weft.serve.llama.prompts import infill_prompt
    from weft.serve.llama.schema import InfillRequest

    tokenizer = Tokenizer.from_gguf(open_model(DEMO))
    roles = {"fim_pre": 3, "fim_suf": 4, "fim_mid": 5}
    object.__setattr__(tokenizer.vocab, "special", {**tokenizer.vocab.special, **roles})

    class Anything:
        def require_short(self, text: str, name: str) -> None:
            pass

    def made(**body: Any) -> list[int]:
        form = {"input_prefix": "ab", "input_suffix": "cd"} | body
        return infill_prompt(InfillRequest(**form), tokenizer, Anything())  # type: ignore[arg-type]

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    bos = list(tokenizer.vocab.prefix)
    assert made(prompt="x") == [*bos, 3, *ids("ab"), 4, *ids("cd"), 5, *ids("x")]
    extra = [{"filename": "f.py", "text": "12"}]
    assert made(input_extra=extra)[: len(bos) + 1 + len(ids("12"))] == [*bos, *ids("12"), 3]
    roles |= {"fim_rep": 6, "fim_sep": 7}
    object.__setattr__(tokenizer.vocab, "special", {**tokenizer.vocab.special, **roles})
    whole = made(input_extra=extra)
    assert whole[len(bos)] == 6 and whole.count(7) == 2 and whole.index(3) > whole.index(7)

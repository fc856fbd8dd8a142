"""Fields as clients of other servers write them: nulls, constraints of vLLM, prompts with control
tokens, base64 of other programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.llm.tiny import metadata, tokens, write_model
from tests.serve.in_process import DEMO, Server
from weft import LLM
from weft.errors import ArgumentError, ContextError
from weft.llm.senses.media import media_bytes

ASK = [{"role": "user", "content": "What is 17 + 25?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, "-np", 2, "-t", 1, "--embeddings") as running:
        yield running


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose vocabulary has the control token `<|user|>`."""
    names, scores, types = tokens()
    keys: dict[str, object] = {
        "tokenizer.ggml.tokens": [*names, "<|user|>"],
        "tokenizer.ggml.scores": np.append(scores, np.float32(0)),
        "tokenizer.ggml.token_type": np.append(types, np.int32(3)),
        "llama.context_length": 256,
    }
    path = write_model(tmp_path_factory.mktemp("marked") / "m.gguf", metadata(**keys))
    with Server(path, "-np", 1, "-t", 1) as running:
        yield running


def post(server: Server, path: str, body: dict[str, Any], status: int = 200) -> Any:
    code, _, answer = server.call("POST", path, body)
    assert code == status, answer
    return answer


def chat(server: Server, status: int = 200, **fields: Any) -> Any:
    body = {"messages": ASK, "max_tokens": 60, "temperature": 0} | fields
    answer = post(server, "/v1/chat/completions", body, status)
    return answer["choices"][0] if status == 200 else answer["error"]


def complete(server: Server, status: int = 200, **fields: Any) -> Any:
    body = {"prompt": "What is 17 + 25?", "max_tokens": 12, "temperature": 0} | fields
    answer = post(server, "/v1/completions", body, status)
    return answer["choices"][0] if status == 200 else answer["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": ASK,
                **dict.fromkeys(("ignore_eos", "timings_per_token", "lora", "tools", "stop")),
                "stream_options": {"include_usage": None, "include_obfuscation": None},
                "min_tokens": None,
                "top_k": None,
                "guided_json": None,
                "structured_outputs": None,
            },
        ),
        ("/v1/completions", {"prompt": "a", "ignore_eos": None, "add_special_tokens": None}),
        ("/tokenize", {"content": "a", "add_special": None, "parse_special": None}),
        ("/v1/messages", {"messages": ASK, "stream": None, "top_k": None}),
        ("/completion", {"prompt": "a", "n_probs": None, "cache_prompt": None, "ignore_eos": None}),
        ("/api/show", {"model": "weft-demo", "verbose": None}),
        ("/api/chat", {"model": "x", "messages": ASK, "stream": False, "options": {"top_k": None}}),
    ],
)
def test_null_is_a_field_left_out(server: Server, path: str, body: dict[str, Any]) -> None:
    limit = {"max_tokens": 2} if path.startswith(("/v1", "/completion")) else {}
    post(server, path, body | limit)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/chat/completions",
            {
                "verbosity": "low",
                "modalities": ["text"],
                "prediction": {"type": "content", "content": "42"},
                "prompt_cache_key": "k",
                "prompt_cache_retention": "24h",
                "safety_identifier": "s",
                "service_tier": "auto",
                "store": True,
                "metadata": {"a": "b"},
                "user": "u",
            },
        ),
        (
            "/v1/responses",
            {
                "text": {"verbosity": "low"},
                "reasoning": {"effort": "none", "summary": "auto", "context": "auto"},
                "prompt_cache_retention": "24h",
                "context_management": [{"type": "compaction", "compact_threshold": 1000}],
                "client_metadata": {"installation": "x"},
                "include": ["reasoning.encrypted_content"],
                "max_tool_calls": 3,
            },
        ),
        (
            "/v1/messages",
            {
                "diagnostics": {"previous_message_id": "msg_1"},
                "metadata": {"user_id": "u"},
                "service_tier": "auto",
                "speed": "standard",
            },
        ),
    ],
)
def test_fields_of_services_have_no_effect(
    server: Server, path: str, fields: dict[str, Any]
) -> None:
    """Fields of the official APIs about billing, caches and such are not called unknown."""
    limit = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 2}
    given = {"input": "a"} if path == "/v1/responses" else {"messages": ASK}
    status, headers, body = server.call("POST", path, given | limit | fields)
    assert status == 200, body
    assert "x-weft-ignored" not in headers


def test_an_answer_in_sound_is_refused(server: Server) -> None:
    assert "modalities" in chat(server, 400, modalities=["text", "audio"])["message"]


def test_what_text_clients_list(server: Server) -> None:
    """Samplers that llama.cpp has no more, and a list as the text of its JSON."""
    fields = {"samplers": ["top_k", "tfs_z", "typical_p", "infill", "temperature"]}
    want = complete(server, samplers=["top_k", "typ_p", "temperature"], temperature=1, seed=1)
    assert complete(server, temperature=1, seed=1, **fields)["text"] == want["text"]
    lists = [complete(server, dry_multiplier=9, dry_sequence_breakers=breakers)["text"]
             for breakers in ([" ", "1"], '[" ", "1"]')]  # fmt: skip
    assert lists[0] == lists[1]
    wrong = complete(server, 400, dry_sequence_breakers="x")
    assert "dry_sequence_breakers must be" in wrong["message"]


@pytest.mark.parametrize("k", [-1, 0])
def test_top_k_that_is_off(server: Server, k: int) -> None:
    every = complete(server, seed=5, temperature=2, top_k=0)["text"]
    assert complete(server, seed=5, temperature=2, top_k=k)["text"] == every
    post(server, "/v1/messages", {"messages": ASK, "max_tokens": 2, "top_k": k})
    options = {"top_k": k, "num_predict": 2}
    post(
        server, "/api/generate", {"model": "x", "prompt": "a", "stream": False, "options": options}
    )
    post(server, "/completion", {"prompt": "a", "n_predict": 2, "top_k": k})


@pytest.mark.parametrize("stop", ["", [""], ["", "4"]])
def test_an_empty_stop_text_stops_nothing(server: Server, stop: Any) -> None:
    text = complete(server, stop=stop, max_tokens=3)["text"]
    assert text == (" " if "4" in stop else " 42")


def test_tokens_that_stop(server: Server) -> None:
    plain = post(server, "/completion", {"prompt": "What is 17 + 25?", "n_predict": 12,
                                         "temperature": 0, "return_tokens": True})  # fmt: skip
    first, second = plain["tokens"][:2]
    piece = post(server, "/detokenize", {"tokens": [first]})["content"]
    cut = complete(server, stop_token_ids=[second])
    assert (cut["text"], cut["finish_reason"]) == (piece, "stop")
    unknown = complete(server, 400, stop_token_ids=[1 << 24])
    assert "stop_token_ids has the token" in unknown["message"]
    # which also holds where the text would end too early
    longer = complete(server, stop_token_ids=[second], min_tokens=5)
    assert longer["text"].startswith(piece) and len(longer["text"]) > len(piece)
    assert complete(server, stop_token_ids=[second], min_tokens=1)["text"] == piece


def test_fewest_tokens(server: Server) -> None:
    assert "min_tokens" in complete(server, 400, min_tokens=13)["message"]
    # a form that is complete cannot go on
    assert chat(server, min_tokens=9, guided_choice=["yes"])["message"]["content"] == "yes"


SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
CHOICES = ["a+b", "[x]", "c|d \\ {1}-&&~#", "naïve\n"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "regex": None, "disable_fallback": True}},
        {"guided_choice": CHOICES},
        {"structured_outputs": {"choice": CHOICES}},
        {"guided_regex": "[xyz]{3}"},
        {"structured_outputs": {"regex": "[xyz]{3}"}},
        {"guided_grammar": 'root ::= "x" "y" "z"'},
        {"structured_outputs": {"grammar": 'root ::= "x" "y" "z"'}},
        {"ebnf": 'root ::= "x" "y" "z"'},
    ],
    ids=str,
)
def test_constraints_of_vllm(server: Server, path: str, fields: dict[str, Any]) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    subject = {"messages": ASK, "prompt": "a", "input": "a"}
    name = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    answer = post(server, path, {name: subject[name], limit: 60, "seed": 3} | fields)
    if path == "/v1/responses":
        text = answer["output"][0]["content"][0]["text"]
    else:
        choice = answer["choices"][0]
        text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
    written = json.dumps(fields)
    if "choice" in written:
        assert text in CHOICES
    elif "properties" in written:
        assert json.loads(text)["a"] in (True, False)
    else:
        assert len(text) == 3 and set(text) <= set("xyz")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"bad_words": ["x"]}, "bad_words"),
        ({"allowed_token_ids": [3]}, "allowed_token_ids"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": "x"}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_json and regex"),
        ({"guided_json": SCHEMA, "json_schema": SCHEMA}, "json_schema"),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json"),
    ],
)
def test_what_cannot_be_held_is_refused(server: Server, fields: dict[str, Any], name: str) -> None:
    assert name in chat(server, 400, **fields)["message"]


PROMPT = "<|user|>ab<|user|>"


def test_control_tokens_in_raw_prompts(marked: Server) -> None:
    def count(body: dict[str, Any]) -> int:
        return len(post(marked, "/tokenize", {"content": PROMPT} | body)["tokens"])

    read, plain = count({"parse_special": True}), count({})
    assert read < plain

    def used(**fields: Any) -> int:
        body = {"prompt": PROMPT, "max_tokens": 1} | fields
        return int(post(marked, "/v1/completions", body)["usage"]["prompt_tokens"])

    assert (used(), used(prompt=[PROMPT]), used(parse_special=False)) == (read, read, plain)
    bare = count({"parse_special": True, "add_special": False})
    assert used(add_special_tokens=False) == bare
    body = {"model": "x", "prompt": PROMPT, "raw": True, "stream": False}
    body |= {"options": {"num_predict": 1}}
    assert post(marked, "/api/generate", body)["prompt_eval_count"] == read
    echoed = post(marked, "/v1/completions", {"prompt": PROMPT, "echo": True, "max_tokens": 1})
    assert echoed["choices"][0]["text"].startswith(PROMPT)


DATA = bytes(range(256)) * 2 + b"\xfb\xff"
STANDARD = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{STANDARD}",
        f"DATA:image/PNG;BASE64,{STANDARD}",
        "data:image/png;base64," + base64.encodebytes(DATA).decode(),
        "data:image/png;base64," + base64.encodebytes(DATA).decode().replace("\n", "\r\n"),
        f"data:image/png;base64,{STANDARD.rstrip('=')}",
        "data:image/png;base64," + base64.urlsafe_b64encode(DATA).decode(),
        "data:image/png;base64," + base64.urlsafe_b64encode(DATA).decode().rstrip("="),
        "data:image/png;base64," + STANDARD.replace("+", "%2B").replace("=", "%3D"),
        f"data:image/png; charset=utf-8;base64, {STANDARD}",
    ],
)
def test_base64_of_other_programs(url: str) -> None:
    assert media_bytes(url, "an image", "image/png", files=False) == DATA


@pytest.mark.parametrize("text", ["A", "abc!", "ab=c", "é"])
def test_damaged_base64(text: str) -> None:
    with pytest.raises(ContextError, match="damaged"):
        media_bytes(f"data:image/png;base64,{text}", "an image", "image/png", files=False)


def test_the_same_options_in_python() -> None:
    with LLM(DEMO, n_threads=1) as llm:
        question = "What is 17 + 25?"
        form: Any = {"temperature": 0.0, "max_tokens": 4}
        plain = llm.generate(question, **form)
        ids = llm.tokenize(question + plain)[len(llm.tokenize(question)) :]
        assert llm.generate(question, stop_token_ids=[ids[1]], **form) == llm.detokenize(ids[:1])
        longer = llm.generate(question, stop_token_ids=[ids[1]], min_tokens=4, **form)
        assert len(longer) > len(llm.detokenize(ids[:1]))
        with pytest.raises(ArgumentError, match="stop_token_ids"):
            llm.generate(question, stop_token_ids="x", **form)  # type: ignore[arg-type]

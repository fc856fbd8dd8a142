"""Requests as programs for other servers send them: hosted tools, choices of tools, formats of the
answer, efforts, HEAD, and conversations that are too long."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.tiny import metadata, write_model
from tests.serve.in_process import Server
from tests.waiting import eventually
from weft.serve import schema
from weft.serve.anthropic import schema as anthropic
from weft.serve.llama import schema as llama
from weft.serve.ollama import schema as ollama
from weft.serve.responses import schema as responses
from weft.serve.schema import Part

TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}<assistant>"
    "[{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}]"
)
ASK = [{"role": "user", "content": "abc"}]
EMPTY = {"type": "object", "properties": {}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": EMPTY} | more}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys: dict[str, object] = {
        "tokenizer.chat_template": TEMPLATE,
        "llama.context_length": 1024,
    }
    path = write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**keys))
    with Server(path, "-np", 1, "-t", 1) as running:
        yield running


def post(server: Server, path: str, body: dict[str, Any], status: int = 200) -> Any:
    code, headers, answer = server.call("POST", path, body)
    assert code == status, answer
    return answer | {"ignored": headers.get("x-weft-ignored", "")}


def chat(server: Server, status: int = 200, **fields: Any) -> Any:
    body = {"messages": ASK, "max_tokens": 300, "seed": 1} | fields
    return post(server, "/v1/chat/completions", body, status)


def prompt_of(usage: dict[str, int]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"]


def prompt(server: Server, **fields: Any) -> str:
    return str(post(server, "/apply-template", {"messages": ASK} | fields)["prompt"])


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": SCHEMA},
        {"type": "json_object", "value": SCHEMA},
        {"type": "grammar", "grammar": 'root ::= "{\\"a\\": " ("true" | "false") "}"'},
        {"type": "regex", "regex": r'\{"a": (true|false)\}'},
    ],
    ids=str,
)
def test_forms_of_the_answer(server: Server, form: dict[str, Any]) -> None:
    answer = chat(server, response_format=form)
    assert json.loads(answer["choices"][0]["message"]["content"]).keys() == {"a"}
    assert answer["ignored"] == ""


@pytest.mark.parametrize("form", [{}, {"type": None}, {"type": "text"}, None])
def test_forms_that_ask_for_nothing(server: Server, form: Any) -> None:
    chat(server, response_format=form, max_tokens=2)


def test_hosted_tools_are_left_out(server: Server) -> None:
    own = function("f")
    mixed = [{"type": "web_search"}, own, {"type": "custom", "custom": {"name": "g"}}]
    assert prompt(server, tools=mixed) == prompt(server, tools=[own])
    answer = chat(server, tools=mixed, max_tokens=2)
    assert answer["ignored"] == "tools.0.web_search, tools.2.custom"
    flat = {"type": "function", "name": "f", "parameters": EMPTY}
    body = {"input": "abc", "max_output_tokens": 2}
    kinds = ("web_search", "custom", "namespace", "local_shell", "mcp", "image_generation")
    tools = [flat, *({"type": kind, "name": "x"} for kind in kinds)]
    answer = post(server, "/v1/responses", body | {"tools": tools})
    plain = post(server, "/v1/responses", body | {"tools": [flat]})
    assert answer["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
    assert answer["ignored"].startswith("tools.1.web_search, tools.2.custom, ")
    one = {"name": "f", "input_schema": EMPTY}
    body = {"messages": ASK, "max_tokens": 2}
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}, one]
    answer = post(server, "/v1/messages", body | {"tools": tools})
    plain = post(server, "/v1/messages", body | {"tools": [one]})
    assert prompt_of(answer["usage"]) == prompt_of(plain["usage"])
    assert answer["ignored"] == "tools.0.web_search_20250305"
    body = {"model": "x", "messages": ASK, "stream": False, "options": {"num_predict": 2}}
    answer = post(server, "/api/chat", body | {"tools": mixed})
    assert answer["ignored"] == "tools.0.web_search, tools.2.custom"
    error = chat(server, 400, tools=mixed[:1], tool_choice="required")["error"]
    assert "tool_choice needs tools that are functions" in error["message"]


def test_a_namespace_has_a_name(server: Server) -> None:
    body = {"input": "abc", "tools": [{"type": "namespace", "tools": []}]}
    status, _, answer = server.call("POST", "/v1/responses", body)
    assert status == 400 and "a namespace of tools has no name" in answer["error"]["message"]


def test_functions_of_a_namespace(server: Server) -> None:
    """The model knows them by both names; their calls have the names apart."""
    name = {"type": "function", "name": "get", "parameters": EMPTY}
    spaces = [{"type": "namespace", "name": space, "tools": [name, {"type": "custom", "name": "c"}]}
              for space in ("crm", "mcp__crm__")]  # fmt: skip
    for space, full in (("crm", "crm.get"), ("mcp__crm__", "mcp__crm__get")):
        flat = [function(one["name"] + ("." if one["name"] == "crm" else "") + "get")
                for one in spaces]  # fmt: skip
        choice = {"type": "function", "name": "get", "namespace": space}
        body = {"input": "abc", "tools": spaces, "tool_choice": choice, "seed": 1}
        answer = post(server, "/v1/responses", body)
        (call,) = answer["output"]
        assert (call["namespace"], call["name"]) == (space, "get") and answer["ignored"] == ""
        talk = [{"role": "user", "content": "abc"}, call]
        given = {"input": talk, "tools": spaces, "max_output_tokens": 1}
        said = {"function": {"name": full, "arguments": call["arguments"]}, "type": "function"}
        said_in_chat = [
            *ASK,
            {"role": "assistant", "content": "", "tool_calls": [said | {"id": "i"}]},
        ]
        text = prompt(server, messages=said_in_chat, tools=flat)
        n = len(post(server, "/tokenize", {"content": text, "parse_special": True})["tokens"])
        assert post(server, "/v1/responses", given)["usage"]["input_tokens"] == n
    body = {"input": "abc", "tools": [{"type": "namespace", "name": "x", "tools": [{}, 1]}]}
    assert post(server, "/v1/responses", body)["ignored"] == "tools.0.namespace"
    wrong = [{"type": "namespace", "name": "x", "tools": [{"type": "function"}]}]
    error = post(server, "/v1/responses", body | {"tools": wrong}, 400)["error"]
    assert "a function of tools has no name" in error["message"]


def test_items_of_hosted_tools(server: Server) -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"}
    items = [
        {"role": "user", "content": "a"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        call,
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "local_shell_call", "call_id": "d", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "d", "output": {"code": 0}},
        {"type": "function_call", "call_id": "e", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "e", "output": None},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file"}},
        {"type": "apply_patch_call_output", "call_id": "p", "status": "completed"},
        {"type": "additional_tools", "role": "developer", "tools": []},
    ]
    body = {"input": items, "max_output_tokens": 2}
    answer = post(server, "/v1/responses", body)
    assert answer["ignored"] == (
        "input.1.web_search_call, input.8.compaction, input.11.additional_tools"
    )
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "so"},
    ]
    found = {"type": "search_result", "source": "s", "title": "t",
             "content": [{"type": "text", "text": "found"}]}  # fmt: skip
    talk = [*ASK, {"role": "assistant", "content": blocks}, {"role": "user", "content": [found]}]
    answer = post(server, "/v1/messages", {"messages": talk, "max_tokens": 2})
    assert answer["ignored"] == (
        "messages.1.content.0.server_tool_use, messages.1.content.1.web_search_tool_result"
    )


def test_choices_of_tools(server: Server) -> None:
    tools = [function("f"), function("g"), function("h", parameters=None)]
    allowed = {"mode": "required", "tools": [function("g")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = chat(server, tools=tools, tool_choice=choice)
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "g"
    named = chat(server, tools=tools, tool_choice={"type": "function", "function": {"name": "h"}})
    call = named["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("h", {})
    odd = choice | {"allowed_tools": {"mode": "often"}}
    assert "allowed_tools" in chat(server, 400, tools=tools, tool_choice=odd)["error"]["message"]


def test_references_in_a_tool(server: Server) -> None:
    deep = {**EMPTY, "properties": {"b": {"type": "boolean"}}, "required": ["b"]}
    parameters = {"type": "object", "properties": {"who": {"$ref": "#/$defs/P"}},
                  "required": ["who"], "$defs": {"P": deep}}  # fmt: skip
    for tools in (
        [function("f", parameters=parameters)],
        [function("f", parameters=parameters), function("g", parameters=parameters)],
    ):
        answer = chat(server, tools=tools, tool_choice="required", max_tokens=400)
        call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        assert json.loads(call["arguments"])["who"].keys() == {"b"}
    tools = [{"name": "f", "input_schema": parameters}]
    body = {
        "messages": ASK,
        "max_tokens": 400,
        "seed": 1,
        "tools": tools,
        "tool_choice": {"type": "any"},
    }
    answer = post(server, "/v1/messages", body)
    assert answer["content"][-1]["input"]["who"].keys() == {"b"}


def test_a_tool_that_cannot_be_held(server: Server) -> None:
    tags = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tools = [function("f", parameters={"type": "object", "properties": {"tags": tags}})]
    chat(server, tools=tools, max_tokens=2)  # nothing is held to it
    error = chat(server, 400, tools=tools, tool_choice="required")["error"]
    assert re.search("tool 'f': properties.tags has uniqueItems", error["message"])
    fine = function("g")
    for part, why in (  # what the compiler alone knows
        ({"type": "string", "pattern": "("}, "a pattern cannot be followed"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "oneOf has"),
        ({"type": "string", "minLength": "3"}, "minLength"),
    ):
        tools = [fine, function("f", parameters={"type": "object", "properties": {"a": part}})]
        error = chat(server, 400, tools=tools, tool_choice="required")["error"]
        assert error["message"].startswith("the parameters of the tool 'f': "), error
        assert why in error["message"] and "call0" not in error["message"]


def test_efforts_are_alike(server: Server) -> None:
    off, low = prompt(server, reasoning_effort="none"), prompt(server, reasoning_effort="low")
    assert off.endswith("[False False none]") and low.endswith("[True True low]")
    assert prompt(server, reasoning_budget=0).startswith(off[: off.index("[")] + "[False False")
    kept = prompt(server, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    assert kept.endswith("[False True low]")

    def used(path: str, body: dict[str, Any], count: str) -> int:
        answer = post(server, path, body)
        return int(answer["usage"][count] if "usage" in answer else answer[count])

    texts = {"none": off, "low": low}
    for effort, text in texts.items():
        body = {"content": text, "parse_special": True}
        n = len(post(server, "/tokenize", body)["tokens"])
        body = {"model": "x", "input": "abc", "max_output_tokens": 1}
        body |= {"reasoning": {"effort": effort}}
        assert used("/v1/responses", body, "input_tokens") == n
        body = {"messages": ASK, "max_tokens": 1, "reasoning_effort": effort}
        assert used("/v1/chat/completions", body, "prompt_tokens") == n
        body = {"model": "x", "messages": ASK, "stream": False, "options": {"num_predict": 1}}
        body |= {"think": False if effort == "none" else effort}
        assert used("/api/chat", body, "prompt_eval_count") == n


def test_temperatures_as_each_api_bounds_them(server: Server) -> None:
    options = {"temperature": 3, "num_predict": 1}
    body = {"model": "x", "prompt": "abc", "stream": False, "options": options}
    assert post(server, "/api/generate", body)["eval_count"] == 1
    body = {"model": "x", "messages": ASK, "stream": False, "options": options}
    assert post(server, "/api/chat", body)["eval_count"] == 1
    raw = {"prompt": "abc", "n_predict": 1, "temperature": 3}
    assert post(server, "/completion", raw)["tokens_predicted"] == 1
    said = post(server, "/v1/completions", {"prompt": "abc", "temperature": 3}, 400)
    assert said["error"]["message"] == "temperature is 3; it must be 0 to 2"


def test_paths_with_v1_and_without(server: Server) -> None:
    for path in ("/completion", "/v1/completion"):
        assert post(server, path, {"prompt": "abc", "n_predict": 1})["stop"]
    for path in ("/tokenize", "/v1/tokenize"):
        assert post(server, path, {"content": "abc"})["tokens"]
    for path, name in (("/ping", "status"), ("/version", "version"), ("/v1/props", "total_slots")):
        assert name in server.call("GET", path)[2]


def test_the_overview_lists_what_there_is(server: Server) -> None:
    connection = server.connect()
    connection.request("GET", "/")
    rows = connection.getresponse().read().decode().splitlines()
    connection.close()
    paths = {row.split()[1] for row in rows if row[:4] in ("GET ", "POST", "DELE")}
    assert {"/v1/chat/completions", "/api/chat", "/api/tags", "/completion"} <= paths
    refused = ("/v1/rerank", "/v1/audio", "/v1/embeddings", "/api/embed", "/v1/files", "/infill")
    assert not any(path.startswith(refused) for path in paths)
    begins = {row.index(row.split()[2]) for row in rows if row.startswith(("GET ", "POST "))}
    assert len(begins) == 1  # columns are even


def test_models_have_their_sizes(server: Server) -> None:
    about = server.call("GET", "/v1/models")[2]["data"][0]
    assert about["max_model_len"] == about["meta"]["n_ctx"] == 1024
    assert about["meta"]["n_ctx_train"] == 1024
    assert about["meta"]["n_params"] > 0 and about["meta"]["size"] > about["meta"]["n_params"]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/models", "/api/tags",
                                  "/api/version", "/metrics", "/props"])  # fmt: skip
def test_head(server: Server, path: str) -> None:
    connection = server.connect()
    try:
        for method in ("GET", "HEAD", "GET"):
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200 and bool(body) == (method == "GET")
    finally:
        connection.close()


def test_a_head_of_what_is_not_there(server: Server) -> None:
    for path, status in (("/nothing", 404), ("/v1/chat/completions", 405)):
        connection = server.connect()
        connection.request("HEAD", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, b"")
        connection.close()


def test_conversations_that_are_too_long(server: Server) -> None:
    for text in ("ab " * 1200, "ab " * 20000):
        long = [{"role": "user", "content": text}]
        error = chat(server, 400, messages=long)["error"]
        assert error["code"] == "context_length_exceeded"
        assert re.search(r"maximum context length is \d+ tokens", error["message"])
        assert "exceeds the available context size" in error["message"]
        assert error["n_prompt_tokens"] > error["n_ctx"] > 0
        answer = post(server, "/v1/messages", {"messages": long, "max_tokens": 2}, 400)
        assert re.match(r"prompt is too long: \d+ tokens > \d+ maximum", answer["error"]["message"])
        answer = post(server, "/api/chat", {"model": "x", "messages": long}, 400)
        assert "exceeds the available context size" in answer["error"]
        answer = post(server, "/completion", {"prompt": text}, 400)
        assert "exceeds the available context size" in answer["error"]["message"]
        answer = post(server, "/v1/responses", {"input": text}, 400)
        assert answer["error"]["code"] == "context_length_exceeded"


def test_an_answer_that_goes_on_from_parts(server: Server) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    talk = [*ASK, {"role": "assistant", "content": parts}]
    assert prompt(server, messages=talk, continue_final_message=True).endswith("<assistant>ab")


def test_parts_of_text_are_lines(server: Server) -> None:
    """As llama-server and vLLM join them, and a last message of the assistant is continued."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]
    assert "<user>a\nb\nc<assistant>" in prompt(server, messages=[{"role": "user",
                                                                  "content": parts}])  # fmt: skip
    talk = [*ASK, {"role": "assistant", "content": "so"}]
    assert prompt(server, messages=talk).endswith("<assistant>so")
    assert "<assistant>so<assistant>" in prompt(server, messages=talk, add_generation_prompt=True)


def test_small_words(server: Server) -> None:
    assert server.call("GET", "/v1/health")[0] == 200
    error = post(server, "/v1/responses/compact", {"input": "a"}, 405)["error"]
    assert "use /v1/responses, and ask for a summary" in error["message"]
    error = server.call("POST", "/v1/completions", b'{"prompt": "\xe9"}')[2]["error"]
    assert "no UTF-8" in error["message"]
    body = {"model": "x", "prompt": "a", "stream": False, "options": {"num_predict": 0}}
    answer = post(server, "/api/generate", body | {"format": SCHEMA})
    assert json.loads(answer["response"]).keys() == {"a"}  # 0 is no limit
    answer = post(server, "/v1/completions", {"prompt": "é", "logprobs": 2, "echo": True,
                                              "max_tokens": 1})  # fmt: skip
    names = answer["choices"][0]["logprobs"]["tokens"]
    assert "bytes:\\xc3" in names and "bytes:\\xa9" in names


def test_fields_without_an_effect_are_in_the_log(server: Server) -> None:
    chat(server, max_tokens=1, odd_word=1, tools=[{"type": "web_search"}])
    what = "without effect: odd_word tools.0.web_search"
    eventually(lambda: any(what in line for line in server.lines))  # the line follows the answer


ITEMS = ("program", "program_output", "additional_tools", "configuration_update", "agent_message")


def test_items_of_newer_clients(server: Server) -> None:
    call = {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file"}}
    items = [
        {"role": "user", "content": "a"},
        *({"type": kind} for kind in ITEMS),
        call,
        {"type": "apply_patch_call_output", "call_id": "p", "output": "done"},
        {"type": "function_call", "call_id": "e", "name": "f", "arguments": {"a": 1}},
        {"type": "function_call_output", "call_id": "e", "output": [{"b": 2}]},
    ]
    answer = post(server, "/v1/responses", {"input": items, "max_output_tokens": 2})
    left = [f"input.{i + 1}.{kind}" for i, kind in enumerate(ITEMS)]
    assert answer["ignored"] == ", ".join(left)
    blocks = [
        {"type": "compaction", "content": "summed up"},
        {"type": "mcp_tool_listing", "server_name": "s"},
        {"type": "text", "text": "so"},
    ]
    talk = [*ASK, {"role": "assistant", "content": blocks}, *ASK]
    answer = post(server, "/v1/messages", {"messages": talk, "max_tokens": 2})
    assert answer["ignored"] == "messages.1.content.1.mcp_tool_listing"
    said = [*ASK, {"role": "assistant", "content": "summed upso"}, *ASK]
    plain = post(server, "/v1/messages", {"messages": said, "max_tokens": 2})
    assert prompt_of(answer["usage"]) == prompt_of(plain["usage"])


def test_messages_of_older_clients(server: Server) -> None:
    call = {"name": "f", "arguments": '{"a": 1}'}
    for more in ({"function_call": call}, {"tool_calls": [{"function": call, "id": "c"}]}):
        talk = [*ASK, {"role": "assistant", "content": None, **more}]
        assert '"arguments": {"a": 1}' in prompt(server, messages=talk)
    for said in (None, "", []):
        talk = [*ASK, {"role": "assistant", "content": said, "refusal": "never"}, *ASK]
        assert "<assistant>never<" in prompt(server, messages=talk)
    parts = ["a", {"type": "refusal", "refusal": "b"}]
    talk = [*ASK, {"role": "assistant", "content": parts}]
    assert prompt(server, messages=talk, continue_final_message=True).endswith("<assistant>ab")
    plain = {"function": {"name": "f", "parameters": EMPTY}}
    assert prompt(server, tools=[plain]) == prompt(server, tools=[function("f")])


@pytest.mark.parametrize("options", [{"temperature": 3}, {"presence_penalty": 5}])
def test_numbers_beyond_the_api_of_openai(server: Server, options: dict[str, Any]) -> None:
    chat(server, 400, **options)
    post(server, "/completion", {"prompt": "a", "n_predict": 1} | options)
    body = {"model": "x", "prompt": "a", "stream": False}
    for more in ({}, {"raw": True}):
        post(server, "/api/generate", body | more | {"options": {"num_predict": 1} | options})


def test_small_values_of_ollama(server: Server) -> None:
    body = {"model": "x", "prompt": "a", "stream": False}
    options = {"num_predict": 1, "mirostat": 1, "repeat_penalty": 0}
    answer = post(server, "/api/generate", body | {"options": options, "suffix": ""})
    assert answer["ignored"] == "options.mirostat" and answer["prompt_eval_count"] > 1
    for effort in ("none", "minimal", "xhigh"):
        post(server, "/api/generate", body | {"options": options, "think": effort})
    post(server, "/v1/completions", {"prompt": "a", "suffix": "", "max_tokens": 1})


TALK = {"messages": ASK, "max_tokens": 1}
BODIES: dict[str, tuple[type[Part], dict[str, Any]]] = {
    "/v1/chat/completions": (schema.ChatBody, TALK),
    "/v1/completions": (schema.CompletionBody, {"prompt": "a", "max_tokens": 1}),
    "/v1/responses": (responses.ResponsesBody, {"input": "a", "max_output_tokens": 1}),
    "/v1/responses/input_tokens": (responses.CountBody, {"input": "a"}),
    "/v1/messages": (anthropic.MessagesBody, TALK),
    "/v1/messages/count_tokens": (anthropic.CountBody, {"messages": ASK}),
    "/api/chat": (ollama.ChatRequest, {"model": "x", "messages": ASK, "stream": False}),
    "/api/generate": (ollama.GenerateRequest, {"model": "x", "prompt": "a", "stream": False}),
    "/completion": (llama.CompletionRequest, {"prompt": "a", "n_predict": 1}),
    "/tokenize": (schema.TokenizeBody, {"content": "a"}),
    "/detokenize": (schema.DetokenizeBody, {"tokens": [1]}),
}
UNBOUNDED = {"max_tokens", "n_predict", "max_output_tokens"}  # without them answers are long
GIVEN = {"input", "messages"}  # what is asked


@pytest.mark.parametrize("path", BODIES)
def test_null_for_every_optional_field(server: Server, path: str) -> None:
    kind, body = BODIES[path]
    if path.startswith("/api/"):
        body = body | {"options": {"num_predict": 1}}
    names = [name for name, field in kind.model_fields.items() if not field.is_required()]
    names = [name for name in names if name not in UNBOUNDED | GIVEN]
    names += [name for name in schema.SAMPLING_FIELDS if issubclass(kind, schema.Generation)]
    assert len(names) > 0
    for name in names:
        if (name == "stream" and path.startswith("/api/")) or name in ("options", "prompt"):
            continue  # its null has a meaning of its own
        code, _, answer = server.call("POST", path, body | {name: None})
        assert code == 200, (name, answer)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ollama.EmbedRequest, {"model": "x", "input": "a"}),
        (ollama.ShowRequest, {"name": "x"}),
        (schema.EmbeddingBody, {"input": "a"}),
        (schema.RerankBody, {"query": "a", "texts": ["a"]}),
        (llama.InfillRequest, {"input_prefix": "a", "input_suffix": "b"}),
        (llama.EmbeddingRequest, {"content": "a"}),
    ],
)
def test_null_where_no_model_answers_here(kind: type[Part], body: dict[str, Any]) -> None:
    plain = kind.model_validate(body).model_dump()
    for name, field in kind.model_fields.items():
        if not field.is_required() and name not in body:
            assert kind.model_validate(body | {name: None}).model_dump() == plain

"""Answers taken apart: what the templates of families say, and what the parser makes of text."""

from __future__ import annotations

import json
import random

import pytest

from tests.llm.answers.parsed import FAMILIES, TOOLS, format_of, joined
from tests.llm.answers.templates import ARROWS, CHANNELS, HARMONY, OPENING, TEMPLATES
from weft.llm.answers import AnswerFormat, Call, CallBegun, CallPiece, Content
from weft.llm.answers.json_text import NoCallError, as_object, read_items, read_value
from weft.llm.answers.markers import HERMES
from weft.llm.answers.parser import AnswerParser
from weft.llm.answers.values import typed_value
from weft.llm.chat.template import ChatTemplate

ARGUMENTS = {"city": 'Zürich {"}', "days": 3, "deep": [{"a": None}]}
AWKWARD = {
    "city": ' \t"C:\\" \\',
    "deep": [{"b": "\\\\", "c": ["é\n'x'", -0.5, True, False]}, None, "("],
}
CALLS = [("weather", ARGUMENTS), ("clock", {"city": "5"}), ("clock", {})]


def parse(
    family: str, text: str, size: int | None = None, tools: object = TOOLS, prompt: str = ""
) -> tuple[str, str, list[tuple[str, str]]]:
    """What the parser makes of `text` in pushes of `size` characters; None: of any size."""
    parser = format_of(family).parser(tools, prompt)  # type: ignore[arg-type]
    rng, events, at = random.Random(0), [], 0
    while at < len(text):
        n = size or rng.choice((1, 2, 3, 7, 40))
        events += parser.push(text[at : at + n])
        at += n
    return joined([*events, *parser.finish()])


def written(family: str, calls: list[tuple[str, dict[str, object]]], content: str = "") -> str:
    """What the template writes for an answer."""
    template = ChatTemplate(TEMPLATES[family])
    message = {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"id": f"abcdefgh{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(calls)
        ],
    }
    text = template.render(
        [{"role": "user", "content": "?"}, message], tools=TOOLS, add_generation_prompt=False
    )
    return text.rpartition("<|assistant|>")[2].removesuffix("<|end|>\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_come_back(family: str) -> None:
    n = 1 if family == "llama" else 3
    for calls in ([CALLS[0]], [CALLS[2]], CALLS[:n], [("clock", AWKWARD)]):
        text = written(family, calls)
        for size in (1, 5, None, 10**6):
            content, _, calls_read = parse(family, text, size)
            assert content == ""
            assert [(name, json.loads(args)) for name, args in calls_read] == calls


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"llama"}))
def test_content_and_reasoning_stand_in_front(family: str) -> None:
    text = "<think>\nIt may <rain>.\n</think>\n\nI look.\n" + written(family, CALLS[:2]).lstrip()
    for size in (1, 4, None, 10**6):
        content, reasoning, calls = parse(family, text, size)
        assert (content, reasoning) == ("I look.", "It may <rain>.")
        assert [name for name, _ in calls] == ["weather", "clock"]


def test_arguments_are_the_text_of_the_model() -> None:
    text = '<tool_call>{"arguments" : {"a":1.50,  "b":\n"\\u00fc"} ,"name":"weather"}</tool_call>'
    assert parse("hermes", text)[2] == [("weather", '{"a":1.50,  "b":\n"\\u00fc"}')]


def test_arguments_that_are_text_of_an_object() -> None:
    text = '<tool_call>{"name": "weather", "arguments": "{\\"a\\": 1.0}"}</tool_call>'
    assert parse("hermes", text)[2] == [("weather", '{"a": 1.0}')]


NO_CALLS = [
    "Just text with a < and a <tool_cal",
    "<tool_call>",
    "<tool_call>\n{oops}\n</tool_call> and more",
    '<tool_call>{"name": "weather", "arguments": {"city": "Ber',
    '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": {"a": NaN}}</tool_call>',
    "<tool_call>" + '{"a":' * 5000,
    "<tool_call>" + '{"a":' * 5000 + "1" + "}" * 5000,
    '{"name": "weather", "arguments": {}}',
    "x <tool_call>" * 50,
    " \n leading space stays",
    "Trailing space stays \n",
    "\n" * 200 + "x",
]


@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_stays_content(text: str) -> None:
    for size in (1, 3, None, 10**6):
        assert parse("hermes", text, size) == (text, "", [])


def test_a_call_behind_what_is_none() -> None:
    text = '<tool_call>no <tool_call>{"name": "clock"}</tool_call> done'
    for size in (1, 3, None, 10**6):
        content, _, calls = parse("hermes", text, size)
        assert (content, calls) == ("<tool_call>no done", [("clock", "{}")])


@pytest.mark.parametrize("family", FAMILIES)
def test_any_cut_of_noise_gives_the_same(family: str) -> None:
    rng = random.Random(family)
    pieces = [
        *written(family, CALLS[:1]).split(" "), "<think>", "</think>", "{", "}", '"', " ", "\n",
        "<", "<tool_call>", "[TOOL_CALLS]", "weather", "</", ">", "ü", "\\", " " * 70,
    ]  # fmt: skip
    for _ in range(150):
        text = "".join(rng.choices(pieces, k=rng.randrange(25)))
        whole = parse(family, text, 10**6)
        for size in (1, 2, None):
            assert parse(family, text, size) == whole, text


def test_bare_json_of_no_tool_is_an_answer() -> None:
    text = '{"name": "Ada", "parameters": {}}'
    assert parse("llama", text) == (text, "", [])
    assert parse("llama", '<|python_tag|>{"name": "clock", "parameters": {}}')[2] == [
        ("clock", "{}")
    ]
    assert parse("llama", '{"name": "clock"}; {"name": "weather"}')[2] == [
        ("clock", "{}"),
        ("weather", "{}"),
    ]
    assert parse("llama", 'See {"name": "clock"}')[2] == []


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "clock"}</tool_call>'
    assert parse("hermes", text, tools=None) == (text, "", [])


def test_a_prompt_may_begin_the_reasoning() -> None:
    template = ChatTemplate(OPENING)
    form = AnswerFormat.of(template)
    prompt = template.render([{"role": "user", "content": "?"}])
    parser = form.parser(None, prompt)
    events = [event for char in "Hm.\n</think>\n\nYes." for event in parser.push(char)]
    assert joined([*events, *parser.finish()]) == ("Yes.", "Hm.", [])
    parser = form.parser(None, prompt + "\n</think>\n\n")
    assert joined([*parser.push("Yes."), *parser.finish()]) == ("Yes.", "", [])


def test_types_of_tagged_arguments_follow_the_schema() -> None:
    text = written("coder", [("weather", {"city": "12", "days": 12})])
    assert parse("coder", text)[2] == [("weather", '{"city": "12", "days": 12}')]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5", {"type": ["integer", "string"]}, "5"),
        ("5", {"enum": ["4", "5"]}, "5"),
        ("5", {"enum": [4, 5]}, 5),
        ("5", None, 5),
        (" 5 ", {"type": "string"}, " 5 "),
        ("1e999", {"type": "number"}, "1e999"),
        ("NaN", {"type": "number"}, "NaN"),
        ("True", {"type": "boolean"}, True),
        ("True", {"type": ["boolean", "string"]}, "True"),
        ("Tea", {"type": "boolean"}, "Tea"),
        ("tea", None, "tea"),
        ("[1, (2,), {'a': None}]", {"type": "array"}, [1, [2], {"a": None}]),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("<![CDATA[5]]>", None, "5"),
        ("<![CDATA[5", {"type": "integer"}, "<![CDATA[5"),
    ],
)
def test_values_without_quotes(text: str, schema: object, value: object) -> None:
    got = typed_value(text, schema)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"'\u00fc\xfc\U0001F600\ud83d\ude00'", "üü😀😀"),
        (r"'\n\t\r\b\f\0\'\"\\\/\q'", "\n\t\r\b\f\0'\"\\/\\q"),
        ("'a\\\nb'", "ab"),
        (r"'\ud83d'", "\ufffd"),
        ("-1.50", -1.5),
        ("1.", 1.0),
        (".5e1", 5.0),
        ("-7", -7),
        ("[true, False, null, None, none]", [True, False, None, None, None]),
        ("( 1 ,\n'2' , )", [1, "2"]),
        ("{a: 1, 'b c': {}, \"d\": [], e.f-g$: 'x',}", {"a": 1, "b c": {}, "d": [], "e.f-g$": "x"}),
        ("<|'|>\"it's\\<|'|>", "\"it's\\"),
    ],
)
def test_values_nearly_as_json(text: str, value: object) -> None:
    got = read_value(f" {text}\n", "<|'|>")
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "", "tea", "1 2", "1a", "'a", "\"a'", "'\\", r"'\u00g0'", r"'\u00f'", r"'\x1'",
        r"'\U00110000'", "[1", "[1 2]", "[1)", "[,]", "{a 1}", "{a: 1 b: 2}", "{a}", "{: 1}",
        "<|'|>a", "[" * 1000 + "]" * 1000,
    ],
)  # fmt: skip
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(NoCallError):
        read_value(text, "<|'|>")


def test_keys_and_values() -> None:
    text = "a=1, b = [2], c='=,'"
    assert read_items(text, "", "=") == {"a": 1, "b": [2], "c": "=,"}
    assert read_items("") == {}
    for other in ("a: 1", "a=", "a=1)", "a=1 b=2"):
        with pytest.raises(NoCallError):
            read_items(other, "", "=")


def test_the_longest_of_marks_that_begin_together() -> None:
    parser = AnswerParser(None, None, {}, content=("<c>", "</c>", "</c></a>"))
    assert joined([*parser.push("<c> Yes. </c></a>"), *parser.finish()]) == ("Yes.", "", [])
    parser = AnswerParser(None, None, {}, content=("<c>", "</c></a>", "</c>"))
    events = parser.push("<c>One</c><c>Two</c></a>")
    assert joined([*events, *parser.finish()]) == ("OneTwo", "", [])


def test_a_model_without_tools() -> None:
    """Its calls are in the form that the words of the prompt ask for."""
    form = AnswerFormat.of(ChatTemplate())
    assert form.markers == HERMES and form.thought is None and not form.writes_calls
    parser = form.parser(TOOLS)
    assert joined([*parser.push("<tool_call>"), *parser.finish()]) == ("<tool_call>", "", [])
    text = 'I look.\n<tool_call>\n{"name": "clock", "arguments": {"city": "5"}}\n</tool_call>'
    assert split_everywhere(ChatTemplate().sources["default"], text) == ("I look.", "", [CLOCK])
    parser = form.parser()
    assert joined([*parser.push(text), *parser.finish()]) == (text, "", [])


def test_a_known_family_where_the_template_writes_no_calls() -> None:
    source = "{{ tools | tojson }} answer in <tool_call></tool_call>{{ messages[0].content }}"
    form = AnswerFormat.of(ChatTemplate(source))
    assert form.markers is not None and form.markers.open == "<tool_call>"


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_in_pieces(family: str) -> None:
    """The pieces of a call are its arguments; where the answer is cut, they are no JSON."""
    calls = CALLS[: 1 if family == "llama" else 2]
    text = written(family, calls)
    for size in (1, 3, 10**6):
        for end in (len(text), len(text) - len(text) // 3, len(text) // 2):
            parser = format_of(family).parser(TOOLS, pieces=True)
            cut = text[:end]
            events = [
                e for at in range(0, len(cut), size) for e in parser.push(cut[at : at + size])
            ]
            events += parser.finish()
            begun = {e.index: e.name for e in events if isinstance(e, CallBegun)}
            whole = {e.index: e for e in events if isinstance(e, Call)}
            for index, name in begun.items():
                pieces = "".join(
                    e.text for e in events if isinstance(e, CallPiece) and e.index == index
                )
                if index in whole:
                    assert (whole[index].name, whole[index].arguments) == (name, pieces)
                else:
                    assert as_object(pieces) is None
            if end == len(text):
                assert [(c.name, json.loads(c.arguments)) for c in whole.values()] == calls
                named = format_of(family).markers
                in_json = named is not None and named.kind in ("object", "keyed", "named")
                assert len(begun) == (len(calls) if in_json and size == 1 else len(begun))
                assert in_json or not begun


def split_everywhere(
    source: str, text: str, prompt: str = ""
) -> tuple[str, str, list[tuple[str, str]]]:
    """What the parser of a template makes of `text`, however it is cut."""
    form = AnswerFormat.of(ChatTemplate(source))

    def read(*pieces: str) -> tuple[str, str, list[tuple[str, str]]]:
        parser = form.parser(TOOLS, prompt)  # type: ignore[arg-type]
        events = [event for piece in pieces for event in parser.push(piece)]
        return joined([*events, *parser.finish()])

    whole = read(text)
    assert read(*text) == whole
    for at in range(1, len(text)):
        assert read(text[:at], text[at:]) == whole, text[:at]
    return whole


CLOCK = ("clock", '{"city": "5"}')


def test_messages_with_headers() -> None:
    """As gpt-oss writes them: in the form of its template, and in the other that it knows."""
    prompt = "<|start|>user<|message|>?<|end|><|start|>assistant"
    body = '{"city": "5"}<|call|>'
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for header in (
        " to=functions.clock<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>",
    ):
        text = thought + header + body
        assert split_everywhere(HARMONY, text, prompt) == ("", "Hm.", [CLOCK])
    text = "<|channel|>commentary<|message|>First.<|end|><|start|>assistant" + (
        "<|channel|>commentary to=functions.clock json<|message|>" + body
    )
    assert split_everywhere(HARMONY, text, prompt) == ("First.", "", [CLOCK])
    text = thought + "<|channel|>final<|message|>Yes <|"
    assert split_everywhere(HARMONY, text, prompt) == ("Yes <|", "Hm.", [])
    cut = thought + '<|channel|>commentary to=functions.clock json<|message|>{"city": '
    assert split_everywhere(HARMONY, cut, prompt) == ('{"city": ', "Hm.", [])
    assert split_everywhere(HARMONY, "no header", prompt) == ("no header", "", [])


def test_messages_with_headers_in_pieces() -> None:
    form = AnswerFormat.of(ChatTemplate(HARMONY))
    body = '{"city": "} {", "deep": {"a": {}} } '
    text = f" to=functions.clock<|channel|>commentary json<|message|>{body}<|call|>"
    for end in range(text.index("{") + 1, len(text) + 1):
        parser = form.parser(TOOLS, "<|start|>assistant", pieces=True)
        events = [e for char in text[:end] for e in parser.push(char)] + parser.finish()
        pieces = "".join(e.text for e in events if isinstance(e, CallPiece))
        assert sum(isinstance(e, CallBegun) for e in events) == 1
        assert not any(isinstance(e, Content) for e in events)
        if end == len(text):
            assert events[-1] == Call(0, "clock", pieces) and pieces == body.strip()
        else:
            assert as_object(pieces) is None and body.startswith(pieces)


def test_content_with_marks_of_its_own() -> None:
    thought = "<|think|>Hm.<|end|><|begin|>assistant"
    text = thought + "<|content|>Yes."
    assert split_everywhere(CHANNELS, text, "<|begin|>assistant") == ("Yes.", "Hm.", [])
    text = thought + '<|calls|><|call|>x9<|name|>clock<|args|>{"city": "5"}<|/call|><|/calls|>'
    assert split_everywhere(CHANNELS, text, "<|begin|>assistant") == ("", "Hm.", [CLOCK])


def test_a_prompt_may_begin_the_call() -> None:
    text = 'clock\n{"city": "5"}>>>clock\n{"city": "5"}'
    assert split_everywhere(ARROWS, text, "<assistant>>>>") == ("", "", [CLOCK, CLOCK])
    text = 'all\nI look.>>>clock\n{"city": "5"}'
    assert split_everywhere(ARROWS, text, "<assistant>>>>") == ("I look.", "", [CLOCK])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "answer with <|tool_call|>",
            '<|tool_call|>[{"name": "clock", "arguments": {"city": "5"}}]',
        ),
        ("<|tool_list_start|>", "<|tool_call_start|>[clock(city='5')]<|tool_call_end|>"),
        ("List of tools: [", '<|tool_call_start|>[clock(city="5")]<|tool_call_end|>'),
        ("functools[...]", 'functools[{"name": "clock", "arguments": {"city": "5"}}]'),
    ],
)
def test_families_known_by_a_text(source: str, text: str) -> None:
    source += "{{ tools | tojson }}{{ messages[0].content }}"
    assert split_everywhere(source, text) == ("", "", [CLOCK])
    template = ChatTemplate(source)
    call = {"function": {"name": "clock", "arguments": CLOCK[1]}}
    messages = [{"role": "assistant", "content": "I look.", "tool_calls": [call, call]}]
    written = template.render(AnswerFormat.of(template).said(messages, template))
    assert split_everywhere(source, written[written.index("I look.") :])[2] == [CLOCK] * 2


def test_values_between_tags_may_hold_the_tags() -> None:
    value = "a </parameter> b </function> <parameter=x> c"
    text = written("coder", [("weather", {"city": value})])
    assert [(n, json.loads(a)) for n, a in parse("coder", text, 1)[2]] == [
        ("weather", {"city": value})
    ]


def test_what_is_between_tags_may_be_a_literal_of_python() -> None:
    """Some templates print objects as Python does."""
    text = written("coder", [("weather", {"days": 1})]).replace(
        "\n1\n", "\n{'a': [True, None, 'it\\'s'], \"b\": (1,)}\n"
    )
    assert json.loads(parse("coder", text)[2][0][1]) == {
        "days": {"a": [True, None, "it's"], "b": [1]}
    }


def test_ids_as_kimi_has_them() -> None:
    """Its results name the call by function and number; one of its templates writes ids alone."""
    head = "{{ tools }}{% for m in messages %}{% for c in m.tool_calls %}"
    behind = "<|tool_call_argument_begin|>{% endfor %}{{ m.tool_call_id }} {% endfor %}"
    by_id = ChatTemplate(f"{head}{{{{ c['id'] }}}}{behind}{{# <|tool_calls_section_begin|> #}}")
    by_index = ChatTemplate(TEMPLATES["kimi"] + "{{ messages[-1].tool_call_id }}")

    def turn(id_: str) -> list[dict[str, object]]:
        call = {"id": id_, "function": {"name": "clock", "arguments": "{}"}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id_, "content": ""},
        ]

    messages = turn("call_1") + turn("call_2")
    for template, last in ((by_id, "functions.clock:1"), (by_index, "functions.clock:0")):
        form = AnswerFormat.of(template)
        assert form.markers is not None and form.markers.has_ids_of_names
        said = form.said(messages, template)
        assert template.render(said).split()[-1].endswith(last)
    text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0"
    text += '<|tool_call_argument_begin|>{"city": "5"}<|tool_call_end|><|tool_calls_section_end|>'
    assert split_everywhere(by_id.sources["default"], text) == ("", "", [CLOCK])

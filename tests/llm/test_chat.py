"""Chat templates: what they render, what they may not do, and what is said about broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.fuzz import templates
from tests.llm.tiny import metadata, write_model
from weft.errors import ChatError
from weft.frontends.gguf import open_gguf
from weft.llm.chat.template import CHATML, ChatTemplate

USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Hi."}

ALTERNATE = """{{ bos_token }}{% for m in messages %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]
    {%- else %} {{ m.content }}{{ eos_token }}
    {%- endif %}
{%- endfor %}"""


def test_the_fallback_is_chatml() -> None:
    template = ChatTemplate()
    assert template.is_fallback and "<|im_end|>" in template.stops
    assert template.render([SYSTEM, USER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render([USER, ANSWER], add_generation_prompt=False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n"
    )


def test_a_template_of_its_own_with_bos_and_eos() -> None:
    template = ChatTemplate(ALTERNATE, bos="<s>", eos="</s>")
    assert not template.is_fallback and template.stops == ()
    assert template.render([USER, ANSWER, USER]) == (
        "<s>[INST] Hello [/INST] Hi.</s>[INST] Hello [/INST]"
    )


def test_a_refusal_is_what_the_template_says() -> None:
    template = ChatTemplate(ALTERNATE, where="the chat template of m.gguf")
    with pytest.raises(ChatError, match=r"of m\.gguf refuses .*roles must alternate"):
        template.render([USER, USER])


def test_what_templates_are_written_for() -> None:
    text = (
        "{% for t in tools %}\n    {{ t | tojson }}\n{% endfor %}\n"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "|{{ strftime_now('%Y') | length }}|{{ enable_thinking }}|{{ [1, 2] | tojson(indent=1) }}"
    )
    tools = [{"type": "function", "function": {"name": "füx", "description": "a < b & 'c'"}}]
    got = ChatTemplate(text).render([USER, ANSWER], tools=tools, enable_thinking=False)
    assert got == (
        '    {"type": "function", "function": {"name": "füx", "description": "a < b & \'c\'"}}\n'
        "Hello|4|False|[\n 1,\n 2\n]"
    )


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]
    template = ChatTemplate()
    assert template.render([{"role": "user", "content": parts}]) == template.render([USER])
    with pytest.raises(ChatError, match="part of type image_url"):
        template.render([{"role": "user", "content": [{"type": "image_url"}]}])


@pytest.mark.parametrize("arguments", ['{"a": [1, "ü"]}', {"a": [1, "ü"]}])
@pytest.mark.parametrize(
    "source",
    ["{{ f.arguments | tojson }}", "{{ f.arguments }}", "{{ '' + f.arguments + '' }}",
     "{{ '' ~ f.arguments }}", "{% if f.arguments is string %}{{ f.arguments }}{% else %}"
     "{{ f.arguments | tojson }}{% endif %}",
     "{% for k, v in f.arguments.items() %}{% raw %}{{% endraw %}{{ k | tojson }}: "
     "{{ v | tojson }}}{% endfor %}"],
)  # fmt: skip
def test_arguments_of_calls_suit_every_template(source: str, arguments: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    template = ChatTemplate("{% set f = messages[0].tool_calls[0].function %}" + source)
    assert template.render([message]) == '{"a": [1, "ü"]}'


@pytest.mark.parametrize(
    "source",
    ["{{ f.arguments | tojson }}", "{{ f.arguments }}", "{{ '' + f.arguments }}",
     "{{ '' ~ f.arguments }}"],
)  # fmt: skip
def test_arguments_given_as_text_are_kept_to_the_letter(source: str) -> None:
    text = '{"a":1.50,\n "b" : "\\u00fc"}'
    call = {"function": {"name": "f", "arguments": text}}
    template = ChatTemplate("{% set f = messages[0].tool_calls[0].function %}" + source)
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == text


def test_arguments_that_are_no_json_stay() -> None:
    calls = [{"name": "f", "arguments": "{oops"}, "x", {"function": {"name": "g"}}]
    message = {"role": "assistant", "tool_calls": calls}
    assert ChatTemplate("{{ messages[0].tool_calls | tojson }}").render([message]) == (
        '[{"name": "f", "arguments": "{oops"}, "x", {"function": {"name": "g"}}]'
    )


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no messages"),
        (["hello"], "message 0 is 'hello'"),
        ([USER, {"content": "x"}], "message 1 has no role"),
        ([{"role": "user"}], "has no content"),
        ([{"role": "user", "content": 3}], "content is 3"),
    ],
)
def test_messages_that_are_none(messages: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ChatError, match=message):
        ChatTemplate().render(messages)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", r"line 1: the template does not compile"),
        ("a\n{{ x", r"line 2: the template does not compile"),
        ("{{ messages.nothing.more }}", "fails on these messages: UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(messages) }}", "SecurityError"),
        ("{{ 'x' * 99999999999 }}", "SecurityError"),
        ("{{ 9 ** 9 ** 9 ** 9 }}", "SecurityError"),
        ("{{ '%99999999999999999999d' % 1 }}", "SecurityError"),
        ("{{ range(10000000) | list }}", "OverflowError|SecurityError"),
        ("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "SecurityError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself without end"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages | tojson(indent='x', y=1) }}", "TypeError"),
    ],
)
def test_broken_and_hostile_templates(source: str, message: str) -> None:
    with pytest.raises(ChatError, match=message):
        ChatTemplate(source).render([USER])


SHORT = (6, 10)
LONG = pytest.param(1, 60, marks=pytest.mark.part("faults"))


@pytest.mark.parametrize(("every", "n"), [SHORT, LONG])
def test_hostile_templates_are_bounded(every: int, n: int) -> None:
    """Each seed renders or is a ChatError, and none takes more than its units."""
    for source in templates.corpus()[::every]:
        templates.check(source)
    templates.run(seed=0, n=n)


def test_the_bound_grows_with_the_conversation() -> None:
    turn = {"role": "user", "content": " word" * 40_000 + "\n"}
    source = (
        "{% for m in messages %}{{ (m.content | trim).split('x')[-1] ~ eos_token }}{% endfor %}"
    )
    assert len(ChatTemplate(source).render([turn] * 20)) == 20 * 199_999


FILTERS = """{{ [3, 1]|sort|join('-') }} {{ [1, 1]|unique|list }} {{ {'b': 1}|dictsort }}
{{ messages|map(attribute='role')|list }} {{ [1, 2]|sum }} {{ 'ab'|first }}{{ 'ab'|reverse }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ ' x '|trim|upper }}
{{ none|default('d', true) }} {{ {'a': 1}|items|list }} {{ [1, 2]|reject('odd')|list }}
{{ '%05.1f|%s'|format(1.25, 'x') }} {{ 'a%d' % 3 }} {{ 'a\nb'|indent(2) }} {{ 2.345|round(1) }}
{{ [2, 9]|max }} {{ 'a-b'|replace('-', '+') }} {{ '5'|int + 1 }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }}
{{ 1 < 2 < 3 }} {{ 'a' in ['a'] }} {{ 'k' not in {'k': 1} }} {{ '{}:{x:>3}'.format(1, x=2) }}
{% for b in [1, [2, [3]]] recursive %}{{ loop(b) if b is iterable else b }}{% endfor %}
{% macro m(a) %}<{{ a }}{{ caller() if caller }}>{% endmacro %}
{% call m(1) %}c{% endcall %}{{ m(2) }}{{ {'a': 1}.get('a') }}{{ 'a b'.split()|last }}
{% set ns = namespace(n=0) %}
{% for i in range(4) %}{% set ns.n = ns.n + i %}{{ loop.cycle('a', 'b') }}{% endfor %}{{ ns.n }}"""


def test_what_templates_use_is_as_in_jinja() -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    want = plain.from_string(FILTERS).render(messages=[USER, ANSWER])
    assert ChatTemplate(FILTERS).render([USER, ANSWER]) == want


def test_templates_of_a_file(tmp_path: Path) -> None:
    keys = {
        "tokenizer.chat_template": "{{ bos_token }}plain {{ messages[0].content }}",
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template.tool_use": "tools {{ tools[0].name }}{{ eos_token }}",
        "tokenizer.chat_template.rag": "rag",
    }
    template = ChatTemplate.from_gguf(open_gguf(write_model(tmp_path / "m.gguf", metadata(**keys))))
    assert list(template.sources) == ["default", "tool_use", "rag"]
    assert template.render([USER]) == "<s>plain Hello"
    assert template.render([USER], tools=[{"name": "clock"}]) == "tools clock</s>"
    assert template.render([USER], template="rag") == "rag"
    with pytest.raises(ChatError, match="no variant 'x'; there are default, tool_use, rag"):
        template.render([USER], template="x")


def test_a_file_without_one(tmp_path: Path) -> None:
    template = ChatTemplate.from_gguf(open_gguf(write_model(tmp_path / "m.gguf")))
    assert template.is_fallback and template.sources == {"default": CHATML}


def test_an_integer_beyond_64_bits_in_a_message_is_an_error() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(ChatError, match="integer of more than 64 bits"):
        template.render([USER | {"time": 10**400}])
    assert template.render([USER]) == "Hello"


def test_ids_of_calls_that_a_template_refuses() -> None:
    """Templates of Mistral take ids of nine characters; clients send back those of any server."""
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('nine characters') }}{% endif %}{{ c.id }} {% endfor %}"
        "{{ m.tool_call_id }}{% endfor %}"
    )
    call = {"id": "call_0123456789abcdef", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": ""},
    ]
    first, second = ChatTemplate(source).render(messages).split()
    assert first == second and len(first) == 9
    nine = [{"role": "assistant", "content": "", "tool_calls": [{**call, "id": "abcdefghi"}]}]
    assert ChatTemplate(source).render(nine).strip() == "abcdefghi"
    with pytest.raises(ChatError, match="never"):
        ChatTemplate(source + "{{ raise_exception('never') }}").render(messages)


def test_lists_that_a_template_fills() -> None:
    """A template may append text; the messages of the caller stay as they are."""
    source = (
        "{% set ns = namespace(ids=[]) %}{% for m in messages %}{% set _ = ns.ids.append(m.content)"
        " %}{% endfor %}{{ ns.ids.pop(0) }}{{ ns.ids | join }}{% set _ = messages.append('x') %}"
    )
    messages = [{"role": "user", "content": text} for text in "abc"]
    assert ChatTemplate(source).render(messages) == "abc"
    assert len(messages) == 3


def test_reasoning_has_the_name_that_a_template_reads() -> None:
    messages = [{"role": "assistant", "content": "c", "reasoning_content": "r"}]
    for name in ("reasoning_content", "thinking", "reasoning"):
        source = f"{{{{ messages[0].{name} }}}}"
        assert ChatTemplate(source).render(messages) == "r"

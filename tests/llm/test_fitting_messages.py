"""Messages that a template would leave out, or refuse."""

from __future__ import annotations

from typing import Any

import pytest

from weft.errors import ChatError
from weft.llm.chat.template import ChatTemplate

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + PLAIN
)
DROPS = (
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }}]{{ m.content }}"
    "{% endif %}{% endfor %}"
)
FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message is the first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
KNOWS = (
    "{% for m in messages %}{% if m.role == 'developer' %}<dev>{% else %}[{{ m.role }}]{% endif %}"
    "{{ m.content }}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}{{ m['role'] | capitalize }}:{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %} {{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)

SU = [("system", "S"), ("user", "U")]


def talk(*messages: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in messages]


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (PLAIN, [("developer", "D"), ("user", "U")], "[system]D[user]U"),
        (PLAIN, [("system", "S"), ("developer", "D"), ("user", "U")], "[system]S\n\nD[user]U"),
        (KNOWS, [("developer", "D"), ("user", "U")], "<dev>D[user]U"),
        (DROPS, [("developer", "D"), ("user", "U")], "[user]D\n\nU"),
        (DROPS, [("system", "S"), ("user", "U")], "[user]S\n\nU"),
        (NO_SYSTEM, [("system", "S"), ("user", "U")], "[user]S\n\nU"),
        (NO_SYSTEM, [("system", "S"), ("assistant", "A"), ("user", "U")],
         "[assistant]A[user]S\n\nU"),
        (NO_SYSTEM, [("system", "S")], "[user]S"),
        (NO_SYSTEM, [("user", "U"), ("system", "S")], "[user]U\n\nS"),
        (FIRST, [*SU, ("assistant", "A"), ("system", "T"), ("user", "V")],
         "[system]S[user]U[assistant]A[user]T\n\nV"),
        (PARTS, [("user", "hello")], "User: hello"),
        (PARTS, [("system", "S"), ("user", [{"type": "text", "text": "a"},
                                            {"type": "text", "text": "b"}])], "System: SUser: a b"),
        (PLAIN, [("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
         "[user]ab"),
        (PLAIN, [("user", "U"), ("function", "F")], "[user]U[tool]F"),
        (PLAIN, [("user", "U"), ("tool", None)], "[user]U[tool]"),
        (PLAIN, [("assistant", [{"type": "refusal", "refusal": "No"}])], "[assistant]No"),
        (PLAIN, [("user", [{"type": "input_text", "text": "a"}])], "[user]a"),
        (PLAIN, [("assistant", [{"type": "thinking", "thinking": "T"},
                                {"type": "output_text", "text": "a"}])], "[assistant]a"),
    ],
)  # fmt: skip
def test_no_words_are_lost(template: str, messages: list[Any], text: str) -> None:
    assert ChatTemplate(template).render(talk(*messages)) == text


def test_thoughts_in_parts_are_those_of_the_message() -> None:
    template = ChatTemplate(PLAIN + "{{ messages[0].reasoning_content }}")
    parts = [{"type": "thinking", "thinking": "T"}, {"type": "text", "text": "a"}]
    assert template.render(talk(("assistant", parts))) == "[assistant]aT"


def test_roles_that_nobody_has() -> None:
    with pytest.raises(ChatError, match="message 0 has the role 'foo'"):
        ChatTemplate(PLAIN).render(talk(("foo", "F")))
    own = ChatTemplate(PLAIN + "{% if messages[0].role == 'foo' %}!{% endif %}")
    assert own.render(talk(("foo", "F"))) == "[foo]F!"

"""Small chat templates, each in the way that a family of models writes calls of tools."""

_HEAD = """{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}
<|{{ m.role }}|>{{ m.content }}"""
_TAIL = "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

CALLS = {
    "hermes": """{% for c in m.tool_calls %}
{{ '\\n' }}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}""",
    "llama": """{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}
{% endif %}{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "parameters": {#
#}{{ c.function.arguments | tojson }}}{% endfor %}""",
    "mistral": """{% for c in m.tool_calls %}{% if loop.first %}[TOOL_CALLS] [{% endif %}{#
#}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, {#
#}"id": "{{ c.id }}"}{% if loop.last %}]{% else %}, {% endif %}{% endfor %}""",
    "mistral-args": """{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{#
#}{{ c.function.arguments | tojson }}{% endfor %}""",
    "deepseek": """{% for c in m.tool_calls %}{% if loop.first %}<｜tool▁calls▁begin｜>{% endif %}{#
#}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}{{ '\\n```json\\n' }}{#
#}{{ c.function.arguments | tojson }}{{ '\\n```<｜tool▁call▁end｜>' }}{#
#}{% if loop.last %}<｜tool▁calls▁end｜>{% else %}{{ '\\n' }}{% endif %}{% endfor %}""",
    "functionary": """{% for c in m.tool_calls %}<function={{ c.function.name }}>{#
#}{{ c.function.arguments | tojson }}</function>{% endfor %}""",
    "coder": """{% for c in m.tool_calls %}{{ '\\n<tool_call>\\n<function=' }}{#
#}{{ c.function.name }}{{ '>\\n' }}{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>
{{ v if v is string else v | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}""",
    "glm": """{% for c in m.tool_calls %}{{ '\\n<tool_call>' }}{{ c.function.name }}{{ '\\n' }}{#
#}{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}""",
}
"""How each writes `tool_calls` of a message."""

THINKING = "{# <think> </think> #}{% set close = '</think>' %}"

TEMPLATES = {name: f"{THINKING}{_HEAD}{calls}{_TAIL}" for name, calls in CALLS.items()}

OPENING = TEMPLATES["hermes"].replace(
    "<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}"
)
"""A template whose prompt begins the reasoning."""

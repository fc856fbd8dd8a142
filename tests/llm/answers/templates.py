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
    "kimi": """{% for c in m.tool_calls %}{% if loop.first %}<|calls|>{% endif %}{#
#}<|call|>functions.{{ c.function.name }}:{{ loop.index0 }}<|args|>{#
#}{{ c.function.arguments | tojson }}<|/call|>{#
#}{% if loop.last %}<|/calls|>{% endif %}{% endfor %}""",
    "call-id": """{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}{#
#}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}""",
    "keyed": """{% for c in m.tool_calls %}{% if loop.first %}<|tools|>[{% endif %}{#
#}{ {{ c.function.name | tojson }}: {{ c.function.arguments | tojson }}}{#
#}{% if loop.last %}]<|/tools|>{% else %}, {% endif %}{% endfor %}""",
    "command": """{% for c in m.tool_calls %}{% if loop.first %}<|ACTION|>[{% endif %}
    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.function.name }}", "parameters": {#
#}{{ c.function.arguments | tojson }}}{% if not loop.last %},{% endif %}
{% if loop.last %}]<|/ACTION|>{% endif %}{% endfor %}""",
    "python": """{% for c in m.tool_calls %}{% if loop.first %}<|calls|>[{% endif %}{#
#}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{#
#}{% if not loop.last %}, {% endif %}{% endfor %}){#
#}{% if loop.last %}]<|/calls|>{% else %}, {% endif %}{% endfor %}""",
    "loose": """{% macro value(v) %}{% if v is string %}<|'|>{{ v }}<|'|>{% elif v is mapping %}{#
#}{ {%- for k, w in v.items() %}{{ k }}:{{ value(w) }}{% if not loop.last %},{% endif %}{#
#}{% endfor %}}{% elif v is iterable %}[{% for w in v %}{{ value(w) }}{#
#}{% if not loop.last %},{% endif %}{% endfor %}]{#
#}{% else %}{{ v | tojson }}{% endif %}{% endmacro %}{#
#}{% for c in m.tool_calls %}<|call>call:{{ c.function.name }}{{ value(c.function.arguments) }}{#
#}<call|>{% endfor %}""",
    "typed": """{% for c in m.tool_calls %}{{ '\\n' }}{% if loop.first %}<X|calls>
{% endif %}<X|invoke name="{{ c.function.name }}">
{% for k, v in c.function.arguments.items() %}{#
#}<X|parameter name="{{ k }}" string="{{ 'true' if v is string else 'false' }}">{#
#}{{ v if v is string else v | tojson }}</X|parameter>
{% endfor %}</X|invoke>{% if loop.last %}
</X|calls>{% endif %}{% endfor %}""",
    "elements": """{% macro value(v) %}{% if v is mapping %}{% for k, w in v.items() %}{#
#}@@<{{ k }}>{{ value(w) }}@@</{{ k }}>{% endfor %}{% elif v is iterable and v is not string %}{#
#}{% for w in v %}@@<item>{{ value(w) }}@@</item>{% endfor %}{#
#}{% else %}{{ v if v is string else v | tojson }}{% endif %}{% endmacro %}{#
#}{% for c in m.tool_calls %}{% if loop.first %}@@<calls>
{% endif %}@@<invoke name="{{ c.function.name }}">{{ value(c.function.arguments) }}@@</invoke>
{% if loop.last %}@@</calls>{% endif %}{% endfor %}""",
}
"""How each writes `tool_calls` of a message."""

THINKING = "{# <think> </think> #}{% set close = '</think>' %}"

TEMPLATES = {name: f"{THINKING}{_HEAD}{calls}{_TAIL}" for name, calls in CALLS.items()}

OPENING = TEMPLATES["hermes"].replace(
    "<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}"
)
"""A template whose prompt begins the reasoning."""

HARMONY = """{{ tools | tojson if tools }}{% for m in messages %}{% if m.role == 'assistant' %}{#
#}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{#
#}{% endif %}{% for c in m.tool_calls %}<|start|>assistant to=functions.{{ c.function.name }}{#
#}<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% else %}{#
#}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>{% endfor %}{% else %}{#
#}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}{#
#}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""Messages with headers, as gpt-oss has them."""

CHANNELS = """{{ tools | tojson if tools }}{% for m in messages %}{% if m.role == 'assistant' %}{#
#}{% if m.reasoning_content %}<|begin|>assistant<|think|>{{ m.reasoning_content }}<|end|>{#
#}{% endif %}<|begin|>assistant{% if m.tool_calls %}<|calls|>{% for c in m.tool_calls %}<|call|>{#
#}{{ c.id }}<|name|>{{ c.function.name }}<|args|>{{ c.function.arguments | tojson }}<|/call|>{#
#}{% endfor %}<|/calls|>{% else %}<|content|>{{ m.content }}<|end|>{% endif %}{% else %}{#
#}<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>{% endif %}{% endfor %}{#
#}{% if add_generation_prompt %}<|begin|>assistant{% endif %}"""
"""Parts of an answer with marks of their own, content among them."""

ARROWS = """{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{#
#}{% if m.role == 'assistant' %}{% if m.content %}>>>all
{{ m.content }}{% endif %}{% for c in m.tool_calls %}>>>{{ c.function.name }}
{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}<|end|>{#
#}{% endfor %}{% if add_generation_prompt %}<assistant>>>>{% endif %}"""
"""The prompt has the mark that begins content and calls alike."""

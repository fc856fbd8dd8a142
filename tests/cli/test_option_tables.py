"""Options of the library and of the server are flags, with the same defaults."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from weft.cli.groups import Group
from weft.cli.loading import Load
from weft.cli.prefix_flags import PrefixFlags
from weft.cli.run import RunFlags, WriterLoad
from weft.cli.serve import ServeFlags, ServeLoad
from weft.llm.cache.prefix_options import PREFIX_OPTIONS
from weft.llm.planning.options import LLM_OPTIONS
from weft.serve import ServeOptions

GROUPS: tuple[type[Group], ...] = (RunFlags, WriterLoad, PrefixFlags, ServeFlags, ServeLoad)
WITHOUT_FLAGS = {
    "aliases": "--alias has several names with commas",
    "chat_template": "a group of its own (TemplateFlags)",
    "chat_template_kwargs": "a group of its own (TemplateFlags)",
    "head_timeout": "10 s is enough for any client",
    "max_choices": "only `weft batch` needs more",
    "sampling": "a group of its own (SamplingDefaults)",
    **dict.fromkeys(PREFIX_OPTIONS, "a group of its own (PrefixFlags)"),
}
"""Fields of `ServeOptions` that are no field of `ServeFlags`, and why."""


def test_every_flag_of_the_table_is_taken() -> None:
    taken = {flag for group in GROUPS for _, option in group.options().values()
             for flag in option.flags}  # fmt: skip
    for name, option in LLM_OPTIONS.items():
        missing = set(option.flags) - taken
        assert not missing, f"`{name}` has {missing}, which no field of {GROUPS} has"


@pytest.mark.parametrize(
    ("name", "typed"),
    [("n_copies", 3), ("type_k", "q8_0"), ("expert_budget", "1G"), ("plan", Path("plan.json"))],
)
def test_an_option_that_nothing_converts_is_the_argument(name: str, typed: Any) -> None:
    assert Load(**{name: typed}).plan_arguments()[name] == typed


def test_threads_are_one_argument() -> None:
    arguments = Load(n_threads=3).arguments()
    assert "n_threads" not in arguments and arguments["threads"].n_threads == 3


def test_options_of_the_server_have_flags_with_their_defaults() -> None:
    flags = ServeFlags.options()
    for field in fields(ServeOptions):
        assert (field.name in flags) != (field.name in WITHOUT_FLAGS), field.name
        if field.name in flags and flags[field.name][1].default is not None:
            default = field.default
            assert default is not MISSING and flags[field.name][1].default == default, field.name
    known = {field.name for field in fields(ServeOptions)}
    assert ServeOptions(**ServeFlags().serve_arguments(known)) == ServeOptions()


def test_options_of_the_server_are_taken_over() -> None:
    own = ServeFlags(
        alias="a, b", max_wait=5.0, cors_origins=["https://example.com"], quiet=True, max_file=7
    )
    options = ServeOptions(**own.serve_arguments({field.name for field in fields(ServeOptions)}))
    assert (options.alias, options.aliases) == ("a", ("b",))
    assert (options.max_wait, options.max_file, options.log_level) == (5.0, 7, "error")
    assert options.cors_origins == ("https://example.com",)

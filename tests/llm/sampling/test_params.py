"""Options: what is refused, and the order of the chain."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from weft.errors import ArgumentError, ContextError
from weft.llm.sampling import SAMPLERS, SamplingOptions, SamplingParams


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", "hot", "temperature is 'hot'; it must be a number"),
        ("top_k", 2.5, "top_k is 2.5; it must be a whole number"),
        ("top_k", True, "top_k is True; it must be a whole number"),
        ("typical_p", 1.1, "typical_p is 1.1; it must be 0 to 1"),
        ("xtc_probability", -0.1, "xtc_probability is -0.1"),
        ("repeat_penalty", 0, "repeat_penalty is 0"),
        ("repeat_last_n", -2, "repeat_last_n is -2; it must be -1 or more"),
        ("presence_penalty", float("inf"), "presence_penalty is inf; it must be finite"),
        ("frequency_penalty", float("nan"), "frequency_penalty is nan; it must be finite"),
        ("dry_base", 0.5, "dry_base is 0.5; it must be 1 or more"),
        ("dry_sequence_breakers", "\n", "must be a sequence of texts"),
        ("dry_sequence_breakers", ("a", ""), "must be a sequence of texts, none empty"),
        ("mirostat", 1, r"mirostat is 1; it must be 0 \(off\) or 2"),
        ("logit_bias", {"a": 1}, "logit_bias has the key 'a'; keys are token ids"),
        ("logit_bias", {3: float("nan")}, "logit_bias of token 3 is nan"),
        ("logit_bias", {-3: 1.0}, "logit_bias has the key -3"),
        ("samplers", "top_k;magic", "no sampler 'magic'; there are penalties, dry, "),
        ("samplers", "top_k;top-k", "samplers names top_k twice"),
    ],
)
def test_refusals_name_the_option(name: str, value: object, message: str) -> None:
    with pytest.raises(ContextError, match=message):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_one_constraint_at_most() -> None:
    with pytest.raises(ContextError, match="grammar and regex are both given"):
        SamplingParams(grammar="start: /a/", regex="a")


def test_the_default_order() -> None:
    assert SamplingParams().order == SAMPLERS
    assert SamplingParams(samplers="temp, top-k ;typical").order == (
        "temperature",
        "top_k",
        "typ_p",
    )
    assert SamplingParams(samplers="").order == ()
    assert SamplingParams(samplers=["xtc"]).order == ("xtc",)


def test_keyword_arguments_are_the_fields() -> None:
    assert list(SamplingOptions.__annotations__) == [f.name for f in fields(SamplingParams)]
    assert get_type_hints(SamplingOptions) == get_type_hints(SamplingParams)


def test_combining() -> None:
    base = SamplingParams(temperature=0.3, seed=7)
    assert SamplingParams.combine(base, {"seed": 8}) == SamplingParams(temperature=0.3, seed=8)
    assert SamplingParams.combine(None, {}) == SamplingParams()
    with pytest.raises(
        ArgumentError, match="has no option 'tempreature'; did you mean temperature"
    ):
        SamplingParams.combine(None, {"tempreature": 1})

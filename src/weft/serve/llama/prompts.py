"""Prompts of llama.cpp's own endpoints: texts, token ids and lists of both, and code with a gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.llm import Tokenizer
from weft.serve.errors import ApiError
from weft.serve.llama.schema import InfillRequest
from weft.serve.model_card import FIM_ROLES
from weft.serve.prompts import Prompts, require_whole

_SHAPES = (
    "prompt must be a text, a list of token ids and texts, a list of such prompts, or "
    '{"prompt_string": TEXT}'
)
_PROJECT = "myproject"
"""The name of the project in prompts for infilling, as in llama.cpp."""


def prompts_of(given: Any, tokenizer: Tokenizer, prompts: Prompts) -> tuple[list[list[int]], bool]:
    """The token ids of each prompt of a body, and whether the answer is a list. Names of control
    tokens are read as these tokens. Raises ApiError for any other shape."""
    if isinstance(given, str | dict):
        return [_ids(given, tokenizer, prompts)], False
    if not isinstance(given, list) or not given:
        raise ApiError(400, _SHAPES, "prompt")
    several = all(isinstance(one, str) for one in given) or any(
        isinstance(one, list | dict) for one in given
    )
    if not several:
        return [_ids(given, tokenizer, prompts)], False
    if len(given) > 1024:
        raise ApiError(400, f"prompt has {len(given)} prompts; it may have 1024", "prompt")
    return [_ids(one, tokenizer, prompts) for one in given], True


def _ids(given: Any, tokenizer: Tokenizer, prompts: Prompts) -> list[int]:
    """The token ids of one prompt; BOS is put in front of a text that comes first."""
    if isinstance(given, dict):
        if given.get("multimodal_data"):
            raise ApiError(
                400, "multimodal_data is not read here; send images and sounds in messages, to "
                "/v1/chat/completions", "prompt", "unsupported",
            )  # fmt: skip
        given = given.get("prompt_string")
    parts = [given] if isinstance(given, str) else given
    if not isinstance(parts, list):
        raise ApiError(400, _SHAPES, "prompt")
    ids: list[int] = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            prompts.require_short(part, "prompt")
            ids += tokenizer.encode(part, add_special=number == 0, parse_special=True)
        elif isinstance(part, int) and not isinstance(part, bool) and part >= 0:
            ids.append(part)
        else:
            raise ApiError(400, _SHAPES, "prompt")
    return ids


def infill_prompt(body: InfillRequest, tokenizer: Tokenizer, prompts: Prompts) -> list[int]:
    """The prompt of `/infill`: other files, what is before the gap, what is behind it, and the
    beginning of what is in it. Raises ApiError for a model without tokens for infilling."""
    special = tokenizer.vocab.special
    if any(role not in special for role in FIM_ROLES):
        raise ApiError(
            501, "this model has no tokens for infilling (prefix, suffix, middle); serve one that "
            "was trained for it", code="unsupported",
        )  # fmt: skip
    before, behind, middle = (special[role] for role in FIM_ROLES)
    for name in ("input_prefix", "input_suffix"):
        prompts.require_short(getattr(body, name), name)

    def ids_of(text: str) -> list[int]:
        require_whole(text, "input_extra")
        return tokenizer.encode(text, add_special=False)

    ids = list(tokenizer.vocab.prefix)
    extra = body.input_extra or ()
    if "fim_rep" in special and "fim_sep" in special:
        files: Sequence[tuple[str, str | None]] = [(e.filename or "", e.text) for e in extra]
        ids += [special["fim_rep"], *ids_of(f"{_PROJECT}\n")] if files else []
        for filename, text in files:
            ids += [special["fim_sep"], *ids_of(f"{filename}\n{text}\n")]
        ids += [special["fim_sep"], *ids_of("filename\n")] if files else []
    else:
        for one in extra:
            ids += ids_of(one.text)
    ids += [before, *ids_of(body.input_prefix), behind, *ids_of(body.input_suffix), middle]
    return [*ids, *ids_of(body.prompt)] if body.prompt else ids

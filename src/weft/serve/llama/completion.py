"""The endpoints `/completion` and `/infill` of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from weft.serve.errors import ApiError, Json
from weft.serve.llama.prompts import infill_prompt, prompts_of
from weft.serve.llama.schema import CompletionRequest, InfillRequest, Writing
from weft.serve.llama.written import CompletionAnswer
from weft.serve.prompts import Asked
from weft.serve.respond import note, respond, start
from weft.serve.schema import CompletionBody
from weft.serve.service import Service
from weft.serve.words import shown

__all__ = ["add_completion"]

_DEFAULTS: dict[str, Any] = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0,
    "repeat_last_n": 64, "max_tokens": -1,
}  # fmt: skip
"""What llama.cpp's server has where a body says nothing."""
_RANDOM = (1 << 32) - 1
"""The seed that stands for any."""
_OWN = {"n_probs", "n_cmpl", "cache_prompt", "return_tokens", "post_sampling_probs",
        "response_fields", "prompt", "input_prefix", "input_suffix", "input_extra", "stream",
        "logit_bias"}  # fmt: skip
MOST_BIASES = 4096
"""Most entries of `logit_bias`."""


def add_completion(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""

    @app.post("/completion")
    async def completion(body: CompletionRequest, http: Request) -> Response:
        """The continuation of a prompt, in llama.cpp's form."""
        as_list = isinstance(body.prompt, list) and any(
            isinstance(p, list | dict) for p in body.prompt
        )

        def make() -> Asked:
            nonlocal as_list
            prompts, as_list = prompts_of(body.prompt, service.tokenizer, service.prompts)
            return _asked(service, body, prompts)

        return await _answer(service, body, http, make, lambda: as_list)

    @app.post("/infill")
    async def infill(body: InfillRequest, http: Request) -> Response:
        """The text of a gap in code, for models with tokens for infilling."""

        def make() -> Asked:
            prompt = infill_prompt(body, service.tokenizer, service.prompts)
            return _asked(service, body, [prompt])

        return await _answer(service, body, http, make, lambda: False)


async def _answer(
    service: Service, body: Writing, http: Request, make: Callable[[], Asked],
    as_list: Callable[[], bool],
) -> Response:  # fmt: skip
    note(http, body, service)
    if body.post_sampling_probs:
        raise ApiError(
            400, "post_sampling_probs is not computed here; leave it out to get the model's own "
            "log-probabilities", "post_sampling_probs", "unsupported",
        )  # fmt: skip
    texts = await start(service, make)
    name = service.name_for(body.model)
    answer = CompletionAnswer(texts, service.tokenizer, name, body, as_list())

    def form(whole: dict[str, Any]) -> Response:
        return Json(answer.shaped(whole))

    return await respond(answer, http, stream=bool(body.stream), form=form)


def _asked(service: Service, body: Writing, prompts: list[list[int]]) -> Asked:
    """The texts of a body, whose fields are those of completions with other defaults."""
    given = {k: v for k, v in body.model_dump(exclude_unset=True).items() if k not in _OWN}
    given = {k: v for k, v in given.items() if v is not None and not (k == "grammar" and v == "")}
    if "n_predict" in given or "max_tokens" in given:
        given["max_tokens"] = given.pop("n_predict", given.get("max_tokens"))
    only_reads = given.get("max_tokens") == 0
    if only_reads:
        del given["max_tokens"]
    if given.get("seed") == _RANDOM:
        given["seed"] = -1
    if given.get("temperature", 0) < 0:  # the likeliest token, too
        given["temperature"] = 0.0
    biases = _biases(body.logit_bias, service)
    if biases:
        given["logit_bias"] = biases
    form = _DEFAULTS | given | {"prompt": prompts, "n": body.n_cmpl or body.n or 1}
    asked = service.prompts.of_completion(CompletionBody.model_validate(form))
    change = partial(
        replace, reuse=body.cache_prompt, logprobs=body.n_probs or None,
        **({"max_tokens": 0} if only_reads else {}),
    )  # fmt: skip
    return replace(asked, requests=[change(r) for r in asked.requests])


def _biases(given: Any, service: Service) -> dict[str, float]:
    """Biases as an object by token id. llama.cpp takes pairs of an id or a text with a number or
    false, which forbids the token. Raises ApiError for anything else."""
    if given is None:
        return {}
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > MOST_BIASES:
        raise ApiError(
            400, f"logit_bias is a list of at most {MOST_BIASES} pairs of a token and a number",
            "logit_bias",
        )  # fmt: skip
    biases: dict[str, float] = {}
    for pair in pairs:
        token, value = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        number: Any = -100.0 if value is False else value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or isinstance(token, bool) or not isinstance(token, int | str):
            raise ApiError(
                400, f"logit_bias has {shown(pair)}; a pair is a token, as id or text, and a "
                "number or false", "logit_bias",
            )  # fmt: skip
        if isinstance(token, int) or token.isdigit():
            biases[str(token)] = number
        else:
            for id_ in service.tokenizer.encode(token, add_special=False):
                biases[str(id_)] = number
    return biases

"""The endpoints that llama.cpp's server has besides those of the OpenAI API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from numpy.typing import NDArray

from weft.llm.engine import Ticket
from weft.serve.endpoints import add
from weft.serve.errors import ApiError, Json, to_json
from weft.serve.llama.format import CompletionAnswer, defaults_shown, params_shown
from weft.serve.llama.prompts import infill_prompt, prompts_of
from weft.serve.llama.schema import CompletionRequest, EmbeddingRequest, InfillRequest, Writing
from weft.serve.prompts import MEDIA_MARK, Asked, require_whole
from weft.serve.respond import embedded, note, respond, start
from weft.serve.schema import ChatBody, DetokenizeBody, EmbeddingBody, TokenizeBody, WideCompletion
from weft.serve.service import Service
from weft.serve.validation import shown
from weft.version import __version__

_DEFAULTS: dict[str, Any] = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0,
    "repeat_last_n": 64, "max_tokens": -1,
}  # fmt: skip
"""Values that llama.cpp's server uses for fields that a body does not have."""
_RANDOM = (1 << 32) - 1
"""The seed by which clients ask for a random one."""
_OWN = {"n_probs", "n_cmpl", "cache_prompt", "return_tokens", "post_sampling_probs",
        "response_fields", "prompt", "input_prefix", "input_suffix", "input_extra", "stream",
        "logit_bias"}  # fmt: skip
MOST_BIASES = 4096
"""Maximum number of entries of `logit_bias`."""
LONGEST_TOKENIZED = 1 << 20
"""Maximum number of characters that /tokenize accepts."""
SHORT = 1 << 14
"""Number of characters that are tokenized in some ten milliseconds."""


def add_llama(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""
    turn = asyncio.Lock()

    @add(app, "/tokenize")
    async def tokenize(body: TokenizeBody, http: Request) -> Response:
        """The tokens of a text."""
        note(http, body, service)
        require_whole(body.content, "content")
        if len(body.content) > LONGEST_TOKENIZED:
            raise ApiError(
                400, f"content has {len(body.content)} characters; it may have "
                f"{LONGEST_TOKENIZED}: send it in parts", "content",
            )  # fmt: skip
        work = partial(_tokens, service, body)
        if len(body.content) <= SHORT:
            return await run_in_threadpool(work)
        async with turn:  # long texts one by one, so that they slow down others less
            return await run_in_threadpool(work)

    @add(app, "/detokenize")
    async def detokenize(body: DetokenizeBody, http: Request) -> dict[str, str]:
        """The text of tokens."""
        note(http, body, service)
        n = service.tokenizer.n_vocab
        if any(i >= n for i in body.tokens):
            raise ApiError(400, f"tokens has an id over {n - 1}, the last of this model", "tokens")
        decode = partial(service.tokenizer.decode, body.tokens, special=body.special)
        return {"content": await run_in_threadpool(decode)}

    @add(app, "/apply-template")
    async def apply_template(body: ChatBody, http: Request) -> dict[str, str]:
        """The text of the prompt that messages make."""
        note(http, body, service)
        return {"prompt": await run_in_threadpool(service.prompts.rendered, body)}

    @add(app, "/embedding")
    async def embedding(body: EmbeddingRequest, http: Request) -> list[dict[str, Any]]:
        """Embeddings of texts, in llama.cpp's form."""
        note(http, body, service)
        texts = EmbeddingBody(input=body.content).input
        rows, _ = await embedded(service, http, texts, "content")
        return [
            {"index": i, "embedding": [_normed(row, body.embd_normalize).tolist()]}
            for i, row in enumerate(rows)
        ]

    @add(app, "/completion")
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

    @add(app, "/infill")
    async def infill(body: InfillRequest, http: Request) -> Response:
        """The text of a gap in code, for models with tokens for infilling."""

        def make() -> Asked:
            prompt = infill_prompt(body, service.tokenizer, service.prompts)
            return _asked(service, body, [prompt])

        return await _answer(service, body, http, make, lambda: False)

    @add(app, "/props", "GET")
    async def props() -> dict[str, Any]:
        """The model, its template and its sizes, in llama.cpp's form."""
        return await run_in_threadpool(_props, service)

    @add(app, "/slots", "GET")
    async def slots(http: Request) -> list[dict[str, Any]]:
        """A row for each text that can be written at the same time, in llama.cpp's form."""
        engine = service.engine
        rows = [_slot(service, n, text) for n, text in enumerate(engine.texts())]
        if http.query_params.get("fail_on_no_slot") and all(r["is_processing"] for r in rows):
            raise ApiError(503, f"all {len(rows)} slots write texts", code="no_slot")
        return rows


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
    return await respond(answer, http, stream=bool(body.stream))


def _asked(service: Service, body: Writing, prompts: list[list[int]]) -> Asked:
    """The requests of a body, which has the fields of completions with other defaults."""
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
    asked = service.prompts.of_completion(WideCompletion.model_validate(form))
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


def _props(service: Service) -> dict[str, Any]:
    card, vocab = service.card, service.tokenizer.vocab
    engine = service.engine_or_none

    def text(id_: int | None) -> str:
        if id_ is None:
            return ""
        return service.tokenizer.piece(id_, special=True).decode(errors="replace")

    return {
        "default_generation_settings": {
            "id": 0, "id_task": -1, "n_ctx": service.n_ctx, "speculative": service.drafts,
            "is_processing": False, "prompt": "", "next_token": _next_token(None),
            "params": defaults_shown(service.options.sampling),
        },
        "total_slots": 0 if engine is None else len(engine.texts()),
        "model_alias": service.model_id,
        "model_path": str(card.path),
        "model": service.model_id,
        "chat_template": service.template.sources["default"]
        if "default" in service.template.sources
        else card.template_text,
        "chat_template_caps": {
            "supports_tools": card.knows_tools, "supports_tool_calls": card.knows_tools,
            "supports_system_role": True, "supports_parallel_tool_calls": card.knows_tools,
        },
        "bos_token": text(vocab.bos),
        "eos_token": text(vocab.eos),
        "modalities": {name: name in card.senses for name in ("vision", "audio")},
        "media_marker": MEDIA_MARK,
        "build_info": f"weft {__version__}",
        "is_sleeping": False,
    }  # fmt: skip


def _slot(service: Service, number: int, text: Ticket | None) -> dict[str, Any]:
    """A slot, with nothing of the prompt or the text, which belong to who asked."""
    row: dict[str, Any] = {
        "id": number, "id_task": -1, "n_ctx": service.n_ctx, "speculative": service.drafts,
        "is_processing": text is not None,
    }  # fmt: skip
    if text is not None:
        row["params"] = params_shown(text.request)
        row["n_prompt_tokens"] = len(text.request.prompt)
        row["n_prompt_tokens_processed"] = max(text.n_read - text.n_reused, 0)
        row["n_prompt_tokens_cache"] = text.n_reused
    return row | {"next_token": _next_token(text)}


def _next_token(text: Ticket | None) -> dict[str, Any]:
    limit = None if text is None else text.request.max_tokens
    drawn = 0 if text is None else text.growth.n_drawn
    return {
        "has_next_token": text is not None and not text.growth.finish_reason,
        "has_new_line": False,
        "n_remain": -1 if limit is None else limit - drawn,
        "n_decoded": drawn,
        "stopping_word": "",
    }


def _tokens(service: Service, body: TokenizeBody) -> Response:
    """The whole answer, as a million pieces take seconds to write."""
    ids = service.tokenizer.encode(
        body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return Json({"tokens": ids})
    pieces = {id_: to_json({"id": id_, "piece": _piece(service, id_)}) for id_ in set(ids)}
    data = b'{"tokens":[' + b",".join([pieces[id_] for id_ in ids]) + b"]}"
    return Response(data, media_type="application/json")


def _piece(service: Service, id_: int) -> str | list[int]:
    """A token as text, or as bytes if they are not whole characters."""
    data = service.tokenizer.piece(id_, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _normed(row: NDArray[np.float32], kind: int) -> NDArray[np.float32]:
    """A row of Euclidean length 1 in another norm; -1, the length that the model gave, is not
    known any more. Raises ApiError for that."""
    if kind == 2:
        return row
    if kind < 0:
        raise ApiError(
            400, "embd_normalize is -1; embeddings have length 1 here: send 0, 1, 2 or more",
            "embd_normalize", "unsupported",
        )  # fmt: skip
    if kind >= 1 << 31:
        raise ApiError(400, "embd_normalize is too large; it is less than 2^31", "embd_normalize")
    largest = np.abs(row).max()
    size = largest
    if kind:  # of the parts of the largest, whose powers do not become nothing
        size = largest * np.power(np.abs(row / largest), kind).sum() ** (1 / kind)
    scaled = row * (32760 / size) if kind == 0 else row / size
    return np.asarray(scaled, np.float32)

"""The endpoints `/props` and `/slots` of llama.cpp's server."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

from weft.llm.engine import Ticket
from weft.serve.errors import ApiError
from weft.serve.llama.params import defaults_shown, params_shown
from weft.serve.prompts import MEDIA_MARK
from weft.serve.service import Service
from weft.version import __version__

__all__ = ["add_state"]


def add_state(app: FastAPI, service: Service) -> None:
    """Adds the endpoints to an application."""

    @app.get("/props")
    async def props() -> dict[str, Any]:
        """The model, its template and its sizes, in llama.cpp's form."""
        return await run_in_threadpool(_props, service)

    @app.get("/slots")
    async def slots(http: Request) -> list[dict[str, Any]]:
        """A row for each text that can be written at the same time, in llama.cpp's form."""
        engine = service.engine
        rows = [_slot(service, n, text) for n, text in enumerate(engine.texts())]
        if http.query_params.get("fail_on_no_slot") and all(r["is_processing"] for r in rows):
            raise ApiError(503, f"all {len(rows)} slots write texts", code="no_slot")
        return rows


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
            "is_processing": False, "params": defaults_shown(), "prompt": "",
            "next_token": _next_token(None),
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

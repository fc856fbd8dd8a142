"""Texts written with and without drafts, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.frontends.models import open_model
from weft.llm import Context, Model, SamplingParams, Tokenizer
from weft.llm.drafting.drafting import Drafter, Drafting
from weft.llm.drafting.gain import Chance, Gain, Odds
from weft.llm.engine.request import Request, Ticket
from weft.llm.engine.writer import Writer

__all__ = ["PROMPTS", "SAMPLING", "Eager", "drafting", "made", "request", "written"]

PROMPTS = ([1, 259, 260, 261, 259, 260, 261, 259], [1, 263, 264, 259, 270, 263, 264], [1, 265])
SAMPLING = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, seed=3, repeat_penalty=1.2, dry_multiplier=0.8),
    SamplingParams(temperature=1.3, seed=4, top_k=20, xtc_probability=0.5, xtc_threshold=0.05),
    SamplingParams(temperature=1.0, seed=5, mirostat=2),
    SamplingParams(temperature=0.9, seed=6, adaptive_target=0.5),
    SamplingParams(temperature=1.0, seed=7, regex="(ab|abc|the)+"),
    SamplingParams(temperature=1.2, seed=8, json_schema='{"type": "array", "items": {"enum": '
                   '["the", "abc"]}, "minItems": 3, "maxItems": 9}'),
)  # fmt: skip


class Eager(Gain):
    """Drafts whenever it can, so that much is checked and taken back."""

    def length(self, chances: Sequence[Chance], n_base: int, room: int) -> int:
        return min(room // len(chances), 7)

    def promises(self, odds: Odds, share: float) -> bool:
        return True

    def rests(self, looked: float, n_texts: int) -> int:
        return 0


def made(folder: Path, name: str) -> Path:
    """Writes the tiny model `name`; returns its path."""
    arch, changes = (OTHERS | RELATIVES)[name]
    meta = keys_of(arch, changes)
    return write_model(folder / "m.gguf", meta, made_up(configure(folder, meta)))


def drafting(*drafters: Drafter, n_vocab: int = 274, gain: Gain | None = None) -> Drafting:
    """Drafts of the drafters, whenever they can be made."""
    return Drafting(drafters, n_vocab, gain=Eager() if gain is None else gain)


def written(
    path: Path,
    requests: Sequence[Request],
    drafts: Drafting | None,
    context: Context | None = None,
    **options: Any,
) -> tuple[list[tuple[Any, ...]], Context]:
    """For each text, its tokens and bits of their log-probabilities, its pieces and its end. Texts
    are written in `context`, or a new one with `options`."""
    file = open_model(path)
    sizes = {"n_ctx": 128, "n_seq_max": 1, "n_outputs": 32, "n_threads": 1, "n_ubatch": 64}
    if context is None:
        context = Context(Model(file), **sizes | options)  # type: ignore[arg-type]
    writer = Writer(context, tokenizer := Tokenizer.from_gguf(file), drafting=drafts)
    events: list[list[Any]] = [[] for _ in requests]
    texts = [Ticket(r, tokenizer, e.append) for r, e in zip(requests, events, strict=True)]
    for text in texts:
        writer.check(text.request)
        writer.add(text)
    while writer.step():
        for slot in writer._slots.running:
            if slot.n_done and context.cache.states is None:
                assert context.pos_max(slot.seq) + 1 == slot.n_done == len(slot.tokens) - 1
    results = []
    for text, told in zip(texts, events, strict=True):
        drawn = [(row.id, row.logprob, row.top) for row in text.growth.logprobs]
        said = "".join(e.text for e in told if hasattr(e, "text"))
        results.append((drawn, said, told[-1].reason, told[-1].error))
    return results, context


def request(prompt: Sequence[int], sampling: SamplingParams = SAMPLING[0], n: int | None = 40,
            **options: Any) -> Request:  # fmt: skip
    """A request whose two best log-probabilities of each token are kept."""
    return Request(tuple(prompt), max_tokens=n, sampling=sampling, logprobs=2, **options)

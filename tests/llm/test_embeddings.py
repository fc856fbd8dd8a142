"""Embeddings: encoders, and what decoders make logits of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm.encoder_models import ENCODER, make_encoder
from tests.llm.made_models import TOKENS, context, keys_of
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.llm.compute.embed import Pair, embed_texts
from weft.llm.model import Model

ENCODERS: dict[str, dict[str, object]] = {
    "bert": {}, "eurobert": {}, "gemma-embedding": {"attention.sliding_window": 64},
    "jina-bert-v2": {}, "jina-bert-v3": {}, "llama-embed": {}, "modern-bert": {}, "neo-bert": {},
    "nomic-bert": {}, "nomic-bert-moe": {
        "expert_count": 4, "expert_used_count": 2, "moe_every_n_layers": 2},
}  # fmt: skip


@pytest.mark.parametrize("arch", ENCODERS)
def test_every_token_sees_all_others(tmp_path: Path, arch: str) -> None:
    path, _ = make_encoder(tmp_path, arch, **ENCODERS[arch])
    c = context(path)
    before = c.embed(TOKENS, "none")
    assert before.shape == (len(TOKENS), 16)
    for at in (0, len(TOKENS) - 1):
        changed = list(TOKENS)
        changed[at] = 77
        assert (np.abs(c.embed(changed, "none") - before).max(axis=1) > 1e-4).all()
    plain = context(path, flash=False).embed(TOKENS, "none")
    np.testing.assert_allclose(plain, before, atol=1e-5, rtol=0)


def test_pooling(tmp_path: Path) -> None:
    c = context(make_encoder(tmp_path)[0])
    rows = c.embed(TOKENS, "none")
    np.testing.assert_allclose(c.embed(TOKENS, "mean"), rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(c.embed(TOKENS), c.embed(TOKENS, "mean"), atol=0)
    np.testing.assert_allclose(c.embed(TOKENS, "cls"), rows[0], atol=1e-6)
    np.testing.assert_allclose(c.embed(TOKENS, "last"), rows[-1], atol=1e-6)
    assert c.cache.n_used == 0
    with pytest.raises(ContextError, match="this one has none"):
        c.embed(TOKENS, "rank")
    with pytest.raises(ContextError, match="none, mean, cls, last"):
        c.embed(TOKENS, "max")  # type: ignore[arg-type]
    with pytest.raises(ContextError, match="at least one token"):
        c.embed([])


def test_sequences_of_a_batch_do_not_mix(tmp_path: Path) -> None:
    c = context(make_encoder(tmp_path)[0], n_seq_max=2)
    n = 7
    rows = c.decode(
        TOKENS[: 2 * n],
        [*range(n), *range(n)],
        seqs=[[0]] * n + [[1]] * n,
        outputs="all",
    )
    for part in (slice(0, n), slice(n, 2 * n)):
        np.testing.assert_allclose(rows[part], c.embed(TOKENS[part], "none"), atol=1e-5)


def test_a_text_must_fit_into_one_ubatch(tmp_path: Path) -> None:
    c = context(make_encoder(tmp_path)[0], n_ubatch=8)
    with pytest.raises(ContextError, match="n_ubatch is 8"):
        c.embed(TOKENS)
    assert c.cache.n_used == 0
    assert c.embed(TOKENS[:8]).shape == (16,)


def test_a_context_for_logits_gives_no_embeddings(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match="embeddings=True"):
        context(write_model(tmp_path / "m.gguf")).embed(TOKENS)


def test_embeddings_of_a_decoder_are_what_its_logits_are_made_of(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    c = context(path, embeddings=True, n_ubatch=5)
    rows = c.embed(TOKENS, "none")
    logits = context(path).decode(TOKENS, outputs="all")
    output = Model.open(path).weights["output.weight"].buffer
    assert output is not None
    matrix = np.frombuffer(bytes(output.data), np.float32).reshape(-1, 16)
    np.testing.assert_allclose(rows @ matrix.T, logits, atol=1e-4)
    np.testing.assert_allclose(c.embed(TOKENS, "last"), rows[-1], atol=1e-5)


def test_token_types_are_those_of_the_first_sentence(tmp_path: Path) -> None:
    path, tensors = make_encoder(tmp_path)
    meta = keys_of("bert", ENCODER) | {"tokenizer.ggml.token_type_count": 2}
    before = context(path).embed(TOKENS)
    for row, matters in ((0, True), (1, False)):
        types = tensors["token_types.weight"].copy()
        types[row] += np.linspace(-1, 1, 16, dtype=np.float32)
        other = write_model(tmp_path / "o.gguf", meta, tensors | {"token_types.weight": types})
        assert (np.abs(context(other).embed(TOKENS) - before).max() > 1e-3) == matters


def test_token_types_of_a_second_sentence(tmp_path: Path) -> None:
    path, tensors = make_encoder(tmp_path)
    c = context(path)
    types = [0] * 4 + [1] * (len(TOKENS) - 4)
    one, two = c.embed(TOKENS), c.embed(TOKENS, types=types)
    assert np.abs(one - two).max() > 1e-3
    table = tensors["token_types.weight"]
    meta = keys_of("bert", ENCODER) | {"tokenizer.ggml.token_type_count": 2}
    same = tensors | {"token_types.weight": np.stack([table[1], table[1]])}
    of_second = context(write_model(tmp_path / "o.gguf", meta, same)).embed(TOKENS)
    np.testing.assert_allclose(c.embed(TOKENS, types=[1] * len(TOKENS)), of_second, atol=1e-6)
    pair = Pair(TOKENS)
    pair.n_first = 4
    alone, typed, last = embed_texts(context(path, n_seq_max=3), [TOKENS, pair, TOKENS])
    np.testing.assert_allclose(alone, one, atol=1e-5)
    np.testing.assert_allclose(typed, two, atol=1e-5)
    np.testing.assert_allclose(last, one, atol=1e-5)
    for wrong in ([0], [2] * len(TOKENS), [-1] * len(TOKENS), [0.5] * len(TOKENS)):
        with pytest.raises(ContextError, match="types must be"):
            c.embed(TOKENS, types=wrong)


def test_unknown_pooling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"bert\.pooling_type is 5"):
        make_encoder(tmp_path, pooling_type=5)

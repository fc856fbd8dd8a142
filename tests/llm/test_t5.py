"""T5: logits, embeddings and texts of transformers, through folders, files and the server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import weft
from weft.errors import ContextError, FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, Context, Model
from weft.llm.compute.embed import embed_texts
from weft.llm.compute.inputs import Distances

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

SHAPE: dict[str, Any] = {
    "vocab_size": 400, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "decoder_start_token_id": 0,
}  # fmt: skip
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# the class of transformers, its options, and whether the output has a matrix of its own
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "first": ("T5", {}, False),
    "second": ("T5", GATED, True),
    "tied, unscaled": ("T5", GATED, False),
    "gated, scaled": ("T5", {"feed_forward_proj": "gated-silu"}, False),
    "longer decoder": ("T5", {"num_decoder_layers": 3}, False),
    "umt5": ("UMT5", {}, True),
    "umt5, tied": ("UMT5", {}, False),
    "mt5": ("MT5", {}, True),
}
F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "n_threads": 1}
TEXTS = ["the quick brown fox", "a", "Once upon a time there was a little girl.", "x + 1"]


def make(folder: Path, name: str, suffix: str = "ForConditionalGeneration") -> Any:
    """Saves a model with a tokenizer as T5 has it."""
    kind, options, own = MODELS[name]
    model = folders.made_model(kind, suffix, SHAPE | options)
    if own:
        torch.manual_seed(2)
        model.lm_head.weight = torch.nn.Parameter(torch.randn(400, 32) * 0.3)
        keys = model._tied_weights_keys  # of the class: other models keep theirs
        model._tied_weights_keys = {key: to for key, to in keys.items() if key != "lm_head.weight"}
    model.save_pretrained(folder)
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(folders._TEXT * 3), model_writer=trained, vocab_size=150,
        model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    (folder / "spiece.model").write_bytes(trained.getvalue())
    settings = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def random_ids(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 400, n).tolist()


def wanted(model: Any, prompt: list[int], answer: list[int]) -> Any:
    """Logits in double precision: those in float32 are off by up to 6e-5 themselves."""
    with torch.no_grad():
        out = model.double()(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[0, *answer]]))
    return out.logits[0].numpy()


def near(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_logits(tmp_path: Path, name: str) -> None:
    """From the folder and from the file that it converts to, with all and with part of an answer
    in a call, and a token by itself."""
    model = make(tmp_path, name)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    for path in (tmp_path, tmp_path / "m.gguf"):
        for devices in (["reference"], ["cpu"]):
            context = Context(Model.open(path), 256, devices=devices, type_k="f32", type_v="f32")
            for n in (1, 9, 150):  # beyond the farthest distance
                prompt, answer = random_ids(n, 1), random_ids(30, 2)
                want = wanted(model, prompt, answer)
                context.clear()
                ids = [*context.beginning(prompt), *answer]
                near(context.decode(ids, outputs=[i >= n for i in range(len(ids))]), want)
                context.clear()
                near(context.decode(ids[: n + 4])[-1], want[3])
                near(context.decode(ids[n + 4 : n + 9])[-1], want[8])
                near(context.decode([ids[n + 9]])[-1], want[9])


def test_several_sequences(tmp_path: Path) -> None:
    """Prompts and answers side by side, a fork, and a state that is saved and restored."""
    model = make(tmp_path, "second")
    context = Context(Model.open(tmp_path), 256, n_seq_max=3, **F32)
    prompts, answers = [random_ids(n, n) for n in (7, 12)], [random_ids(9, n) for n in (3, 4)]
    ids = [[*context.beginning(p), *a] for p, a in zip(prompts, answers, strict=True)]
    lasts = [wanted(model, p, a) for p, a in zip(prompts, answers, strict=True)]
    rows = context.decode(
        [id_ for row in ids for id_ in row],
        [i for row in ids for i in range(len(row))],
        seqs=[[s] for s, row in enumerate(ids) for _ in row],
        outputs=[i == len(row) - 1 for row in ids for i in range(len(row))],
    )
    near(rows, np.stack([last[-1] for last in lasts]))
    context.seq_cp(0, 2, 0, len(prompts[0]) + 4)  # the prompt and three tokens of the answer
    other = random_ids(5, 8)
    at = len(prompts[0]) + 4
    rows = context.decode(other, [*range(at, at + 5)], seqs=[[2]] * 5, outputs="all")
    near(rows, wanted(model, prompts[0], answers[0][:3] + other)[4:])
    saved = context.save_state(1)
    context.clear()
    context.load_state(saved, 1)
    at = len(ids[1])
    near(context.decode([5], [at], seqs=[[1]])[0], wanted(model, prompts[1], [*answers[1], 5])[-1])


def test_quantized_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys may be quantized; values are read column by column."""
    monkeypatch.setitem(SHAPE, "d_kv", 32)
    make(tmp_path, "first")
    rows, model = [], Model.open(tmp_path)
    for type_k in ("f32", "q8_0"):
        context = Context(model, 64, type_k=type_k, type_v="f32", n_threads=1)
        rows.append(context.decode([*context.beginning(random_ids(9, 1)), 5, 6])[0])
    assert 0 < np.abs(rows[1] - rows[0]).mean() < 0.1 * np.abs(rows[0]).mean()
    with pytest.raises(ContextError, match="attention with biases of distances reads values"):
        Context(model, 64, type_v="q8_0")


def test_what_cannot_be_computed(tmp_path: Path) -> None:
    make(tmp_path, "first")
    context = Context(Model.open(tmp_path), 64, **F32)
    with pytest.raises(ContextError, match="no prompt for the encoder"):
        context.decode([5, 6])
    ids = context.beginning([5, 6, 7])
    with pytest.raises(ContextError, match="no logits of its prompt"):
        context.decode(ids, outputs="all")
    with pytest.raises(ContextError, match="must come together"):
        context.decode(ids[:2], outputs=[False, False])
    with pytest.raises(ContextError, match="an encoder and a decoder"):
        Context(Model.open(tmp_path), 64, embeddings=True)
    with pytest.raises(ContextError, match="a model with an encoder cannot go on"):
        LLM(tmp_path, n_ctx=64, context_shift=True)
    with LLM(tmp_path, n_ctx=64) as llm, pytest.raises(ContextError, match="texts that go on"):
        llm.perplexity([5] * 64, n_ctx=16)
    done = weft("bench", tmp_path, "-p", "4", "-n", "1")
    assert "weft bench measures models that continue a text" in done.stderr
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value in (("feed_forward_proj", "gated-relu"), ("relative_attention_max_distance", 8)):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(FormatError, match=key):
            Model.open(tmp_path)


@pytest.mark.parametrize("name", ["gated, scaled", "second"])
def test_texts(tmp_path: Path, name: str) -> None:
    """Greedy texts, one by one and together; a prompt that was read is not read again."""
    model = make(tmp_path, name)
    pieces = sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model"))
    with LLM(tmp_path, n_seq_max=4, **F32) as llm:
        want = []
        for text in TEXTS:
            ids = [*pieces.encode(text), 1]
            assert llm.tokenize(text) == ids
            config = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 1}
            out = model.generate(torch.tensor([ids]), **config)[0].tolist()
            want.append(llm.detokenize(out))
        assert len(set(want)) > 1
        got = [llm.generate(text, max_tokens=12, temperature=0) for text in TEXTS]
        assert got == want == llm.generate(TEXTS, max_tokens=12, temperature=0)
        assert llm.generate(TEXTS[0], max_tokens=12, temperature=0) == want[0]
        assert llm.stats.n_cached == llm.stats.n_prompt > 0
        assert "".join(llm.generate(TEXTS[2], max_tokens=12, temperature=0, stream=True)) == want[2]


def test_served(tmp_path: Path) -> None:
    from tests.serve.server import Server

    make(tmp_path, "second")
    with LLM(tmp_path, n_threads=1) as llm:
        want = [llm.generate(text, max_tokens=8, temperature=0) for text in TEXTS]
    with Server(tmp_path, "-np", 2, "-t", 1) as server:
        body = {"prompt": TEXTS, "max_tokens": 8, "temperature": 0}
        status, _, answer = server.call("POST", "/v1/completions", body)
        assert status == 200 and [row["text"] for row in answer["choices"]] == want
        status, _, answer = server.call(
            "POST", "/v1/completions", body | {"echo": True, "logprobs": 1, "max_tokens": 0}
        )
        assert status == 400 and "encoder" in answer["error"]["message"]


def test_the_encoder_alone(tmp_path: Path) -> None:
    """Embeddings of every token, alone and of texts of different lengths together."""
    model = make(tmp_path, "first", "EncoderModel")
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    texts = [random_ids(n, n) for n in (3, 150, 20)]
    with torch.no_grad():
        want = [model(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in texts]
    for path in (tmp_path, tmp_path / "m.gguf"):
        for devices in (["reference"], ["cpu"]):
            context = Context(
                Model.open(path), 256, n_seq_max=3, embeddings=True, devices=devices,
                type_k="f32", type_v="f32",
            )  # fmt: skip
            assert context.pooling == "mean"
            near(context.embed(texts[1], "none"), want[1])
            for got, rows in zip(embed_texts(context, texts), want, strict=True):
                near(got, rows.mean(axis=0))


def test_a_dense_layer_behind_the_encoder(tmp_path: Path) -> None:
    """As sentence-transformers has it."""
    from safetensors.torch import load_file

    model = make(tmp_path, "first", "EncoderModel")
    folders.with_modules(tmp_path, 24)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    matrix = load_file(tmp_path / "2_Dense" / "model.safetensors")["linear.weight"]
    ids = random_ids(9, 1)
    with torch.no_grad():
        want = matrix @ model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
    for path in (tmp_path, tmp_path / "m.gguf"):
        near(Context(Model.open(path), 64, embeddings=True, **F32).embed(ids), want.numpy())


@pytest.mark.parametrize("both", [True, False])
def test_buckets_are_those_of_transformers(both: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    for n_buckets in (8, 32, 64):
        apart = torch.arange(-200, 201 if both else 1)[None]
        want = T5Attention._relative_position_bucket(apart, both, n_buckets, 128)
        got = Distances(n_buckets, both=both)(apart[0].numpy().astype(np.int32), np.zeros(1, "i4"))
        np.testing.assert_array_equal(got, want.numpy())

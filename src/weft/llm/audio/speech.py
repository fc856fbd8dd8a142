"""Whisper (arXiv 2212.04356) as a model of its own: an encoder hears a window of 30 seconds, and a
decoder writes what is said in it, as tokens.

The encoder's graph also computes what the decoder's layers attend to, which stays in their caches
until the next window; the decoder's own keys and values are in caches of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft import graph as G
from weft.backends.base import Backend
from weft.compiler import lower_plan, plan_graph, resolve_devices
from weft.dtype import find_dtype
from weft.errors import ContextError, FormatError
from weft.execute import ArenaPool, Session
from weft.frontends.gguf import GGUFFile
from weft.frontends.models import open_model
from weft.graph.size import Size
from weft.graph.tensor import Buffer, Tensor
from weft.llm.audio import whisper
from weft.llm.audio.whisper import SoundConfig
from weft.llm.cache.memory import allocate
from weft.llm.config_keys import Keys
from weft.llm.hub import local_path
from weft.llm.models import common
from weft.llm.models.names import name_tensors
from weft.llm.weights import Row, Weights, load_weights, maybe, need, need_pair
from weft.records import dataclass

EPS = 1e-5
LEGACY = b"lmgg"
"""The beginning of files of whisper.cpp."""


@dataclass(frozen=True, slots=True)
class SpeechConfig:
    """The sizes of encoder and decoder."""

    encoder: SoundConfig
    n_vocab: int
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_ctx: int
    """Maximum number of tokens of a window, those in front of its text included."""


def read_speech_config(file: GGUFFile) -> SpeechConfig:
    """Reads the keys `whisper.*`. Raises FormatError for a wrong key."""
    keys = Keys(file)
    n_embd = keys.count("embedding_length", most=1 << 16)
    heads = {key: keys.count(f"{key}attention.head_count") for key in ("", "audio.")}
    for key, n in heads.items():
        if n_embd % n:
            raise keys.bad(f"{key}attention.head_count", n, f"a divisor of {n_embd}")
    encoder = SoundConfig(
        projector="whisper",
        n_embd=n_embd,
        n_ff=keys.count("audio.feed_forward_length"),
        n_layer=keys.count("audio.block_count", most=1 << 10),
        n_head=heads["audio."],
        n_out=n_embd,
        eps=EPS,
        n_mel=keys.count("audio.num_mel_bins", most=1 << 10),
        n_positions=keys.count("audio.context_length", most=1 << 16),
    )
    return SpeechConfig(
        encoder=encoder,
        n_vocab=keys.n_vocab(),
        n_embd=n_embd,
        n_ff=keys.count("feed_forward_length"),
        n_layer=keys.count("block_count", most=1 << 10),
        n_head=heads[""],
        n_ctx=keys.count("context_length", least=8, most=1 << 16),
    )


def rows(c: SpeechConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from whisper.encoder_rows(c.encoder)
    yield need("token_embd.weight", c.n_embd, c.n_vocab)
    yield need("position_embd.weight", c.n_embd, c.n_ctx)
    for il in range(c.n_layer):
        at = f"dec.blk.{il}"
        for norm in ("attn_norm", "cross_attn_norm", "ffn_norm"):
            yield from need_pair(f"{at}.{norm}", c.n_embd)
        for attention in ("attn", "cross_attn"):
            for name in "qkvo":
                yield need(f"{at}.{attention}_{name}.weight", c.n_embd, c.n_embd)
                yield maybe(f"{at}.{attention}_{name}.bias", c.n_embd)
        yield from need_pair(f"{at}.ffn_up", c.n_embd, c.n_ff)
        yield from need_pair(f"{at}.ffn_down", c.n_ff, c.n_embd)
    yield from need_pair("dec.output_norm", c.n_embd)


def open_speech(path: str | os.PathLike[str] | GGUFFile) -> GGUFFile:
    """Opens a model of Whisper or Parakeet: a folder of Hugging Face, or the file that `weft
    convert` makes of one. Raises FormatError for another model, and for a file of whisper.cpp,
    with what to do."""
    if isinstance(path, GGUFFile):
        file = path
    else:
        found = local_path(path)
        if os.path.isfile(found):
            with open(found, "rb") as head:
                if head.read(4) == LEGACY:
                    raise FormatError(
                        f"{found}: a file of whisper.cpp, whose own format weft does not read; "
                        "give the Hugging Face folder of the same model (such as "
                        "openai/whisper-base), or the GGUF file that weft convert makes of it"
                    )
        file = open_model(found)
    if file.architecture not in ("whisper", "parakeet"):
        raise FormatError(
            f"{file.path}: a {file.architecture} model; weft transcribe takes Whisper (of "
            "Hugging Face, WhisperForConditionalGeneration) and Parakeet (ParakeetForCTC, "
            "ParakeetForRNNT, ParakeetForTDT); models that hear otherwise are given "
            "sounds with weft run --audio"
        )
    return file


class Speech:
    """Encoder and decoder in memory. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str] | GGUFFile,
        *,
        devices: Sequence[str | Backend] = ("cpu",),
        type_kv: str = "f16",
        **cpu: Any,
    ) -> None:
        """`type_kv` is the type of the caches; `cpu` are options of the device cpu. Raises
        FormatError for a file that is damaged or of another model, and OutOfMemoryError."""
        backends = resolve_devices(devices, **cpu)
        self.file = open_speech(path)
        self.config = c = read_speech_config(self.file)
        self.weights = load_weights(self.file, rows(c))
        self._type = find_dtype(type_kv)
        n = c.encoder.n_positions
        heard = [self._leaf(f"{kind}_heard_{il}", n) for il in range(c.n_layer) for kind in "kv"]
        said = [self._leaf(f"{kind}_{il}", c.n_ctx) for il in range(c.n_layer) for kind in "kv"]
        self._heard = list(zip(heard[::2], heard[1::2], strict=True))
        self._said = list(zip(said[::2], said[1::2], strict=True))
        arenas = ArenaPool()
        programs = [lower_plan(plan_graph(g, backends)) for g in (self._hearing(), self._writing())]
        arenas.reserve(*programs)
        arenas.load(*programs)
        self._hear, self._write = (Session(program, arenas) for program in programs)
        self._n_said = 0

    def _leaf(self, name: str, n: int) -> Tensor:
        """A cache of n rows."""
        kind, width = self._type, self.config.n_embd
        memory = allocate(None, kind.row_bytes(width) * n, name, "the model")
        return Tensor(kind, (width, n, 1, 1), name=name, buffer=Buffer("any", None, memory))

    def hear(self, mel: ArrayLike) -> None:
        """Hears the spectrogram [n_mel, frames] of a window; what was written before is
        forgotten."""
        n = self.config.encoder.n_positions
        self._hear.run({"mel": mel, "cells": np.arange(n, dtype=np.int64)})
        self._n_said = 0

    def write(self, ids: Sequence[int], first: int | None = None) -> NDArray[np.float32]:
        """The logits f32 [n_vocab] behind `ids`, which follow the ids of earlier calls; with
        `first`, behind the first `first` ids of these. Raises ContextError if there is no room."""
        start = self._n_said if first is None else first
        n, end = len(ids), start + len(ids)
        if not n or end > self.config.n_ctx:
            raise ContextError(
                f"a window has {end} tokens, but the model writes at most {self.config.n_ctx}"
            )
        at = np.arange(start, end)
        mask = np.where(np.arange(end) <= at[:, None], 0, -np.inf).astype(np.float16)
        out = self._write.run(
            {
                "tokens": np.asarray(ids, np.int32),
                "positions": at.astype(np.int32),
                "cells": at.astype(np.int64),
                "mask": mask,
                "last": np.array([n - 1], np.int32),
            }
        )
        self._n_said = end
        return np.array(out["logits"][0], np.float32)

    # ---- graphs ----------------------------------------------------------------------------------

    def _hearing(self) -> G.Graph:
        """From the spectrogram of a window to the caches that the decoder's layers attend to."""
        c, w = self.config, self.weights
        mel = G.input("mel", (c.encoder.n_mel, c.encoder.frames), "f32")
        cells = G.input("cells", (c.encoder.n_positions,), "i64")
        x = common.layer_norm(w, "a.post_ln", whisper.encoded(c.encoder, w, mel), EPS)
        x = x.named("heard")
        writes = []
        for il, caches in enumerate(self._heard):
            layer = w.part("dec.").layer(il)
            for name, cache in zip("kv", caches, strict=True):
                y = common.linear(layer, f"cross_attn_{name}", x)
                writes.append(G.set_rows(cache, y, cells))
        graph = G.Graph(*writes)
        name_tensors(graph)
        return graph

    def _writing(self) -> G.Graph:
        """From tokens to the logits behind the one that `last` says."""
        c, w = self.config, self.weights
        n: Size = G.Sym("n_tokens", 1, c.n_ctx).size
        n_kv: Size = G.Sym("n_kv", 1, c.n_ctx).size
        tokens, at = (G.input(name, (n,), "i32") for name in ("tokens", "positions"))
        cells, mask = G.input("cells", (n,), "i64"), G.input("mask", (n, n_kv), "f16")
        x = G.get_rows(w["token_embd.weight"], tokens)
        x = G.add(x, G.get_rows(w["position_embd.weight"], at))
        for il in range(c.n_layer):
            layer = w.part("dec.").layer(il)
            y = common.layer_norm(layer, "attn_norm", x, EPS)
            kept = [
                G.set_rows(cache, common.linear(layer, f"attn_{name}", y), cells)
                for name, cache in zip("kv", self._said[il], strict=True)
            ]
            y = self._attended(layer, "attn", y, kept, n_kv, mask)
            x = G.add(x, common.linear(layer, "attn_o", y))
            y = common.layer_norm(layer, "cross_attn_norm", x, EPS)
            heard = list(self._heard[il])
            y = self._attended(layer, "cross_attn", y, heard, c.encoder.n_positions, None)
            x = G.add(x, common.linear(layer, "cross_attn_o", y))
            if il == c.n_layer - 1:
                x = G.get_rows(x, G.input("last", (1,), "i32"))
            y = common.linear(layer, "ffn_up", common.layer_norm(layer, "ffn_norm", x, EPS))
            x = G.add(x, common.linear(layer, "ffn_down", G.gelu_erf(y))).named(f"l_out-{il}")
        x = common.layer_norm(w, "dec.output_norm", x, EPS)
        logits = G.mul_mat(w["token_embd.weight"], x)
        graph = G.Graph(logits.as_output("logits"))
        name_tensors(graph)
        return graph

    def _attended(
        self,
        layer: Weights,
        name: str,
        x: Tensor,
        caches: Sequence[Tensor],
        n_kv: Size,
        mask: Tensor | None,
    ) -> Tensor:
        """Attention of x [n_embd, n] to the first `n_kv` rows of caches of keys and values."""
        n_head, n_embd = self.config.n_head, self.config.n_embd
        d, n = n_embd // n_head, x.ne[1]
        q = G.permute(G.reshape(common.linear(layer, f"{name}_q", x), d, n_head, n), 0, 2, 1, 3)
        k, v = (
            G.view_3d(cache, d, n_kv, n_head, cache.nb[1], self._type.row_bytes(d))
            for cache in caches
        )
        out = G.flash_attn_ext(q, k, v, mask, scale=1 / math.sqrt(d))
        return G.reshape(out, n_embd, n)

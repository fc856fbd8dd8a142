"""Pocket TTS (arXiv 2509.06926, "CALM"): a text model that reads a voice, a text and the frames so
far, a flow head that makes a latent of its state, and a codec that makes samples of latents.

Each is a graph over shared memory: `embed`, `read`, `next_frame`, `decode`, and `listen` for a
voice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft import graph as G
from weft.backends.base import Backend
from weft.bounds import SPEECH_CELLS
from weft.compiler import lower_plan, plan_graph
from weft.dtype import find_dtype
from weft.errors import ContextError, FormatError
from weft.execute import ArenaPool, Session
from weft.frontends.gguf import GGUFFile
from weft.graph.size import Size
from weft.graph.tensor import Buffer, Tensor
from weft.llm.audio import codec
from weft.llm.audio.codec import Columns, SeanetConfig, Window
from weft.llm.audio.pocket_config import MOST_STEPS, flow_rows, read_pocket_config, text_rows
from weft.llm.cache.memory import allocate
from weft.llm.config_keys import Keys
from weft.llm.hub import local_path
from weft.llm.models import common
from weft.llm.models.names import name_tensors
from weft.llm.senses.tower import open_mmproj, projector_of
from weft.llm.weights import load_weights, need
from weft.tables import size_text

FLOW_EPS, TIME_EPS = 1e-6, 1e-5


class Pocket:
    """Text model, flow head and codec in memory. One thread at a time may use it."""

    def __init__(
        self,
        file: GGUFFile,
        heads: GGUFFile,
        backends: Sequence[Backend],
        *,
        type_kv: str = "f32",
        n_ctx: int = 0,
        steps: int = 0,
    ) -> None:
        """`file` is the text model, `heads` the file of flow head and codec. `n_ctx` is the number
        of rows of voice, text and frames that there is memory for (0: as many as are of use),
        `steps` the number of steps of the flow (0: the model's). Raises FormatError for files that
        are damaged, and OutOfMemoryError."""
        self.file, self.heads = file, heads
        self.config = c = read_pocket_config(file, heads)
        self.steps = steps or c.steps
        if not 1 <= self.steps <= MOST_STEPS:
            raise ContextError(f"steps is {steps}; the flow has 1 to {MOST_STEPS} steps")
        self.n_ctx = min(n_ctx or SPEECH_CELLS, c.n_ctx)
        hears = Keys(heads).flag("has_audio_encoder", False) and "a.speaker_proj.weight" in (
            heads.tensors
        )
        self.decoder = codec.read_seanet_config(heads, decoder=True)
        self.encoder = codec.read_seanet_config(heads, decoder=False) if hears else None
        self.weights = load_weights(file, text_rows(c))
        rows = [*flow_rows(c), *codec.codec_rows(self.decoder, heads)]
        rows.append(need("a.gen.wav.quant_out.weight", c.n_latent, self.decoder.n_embd))
        rows.append(
            need("a.gen.wav.upsample.weight", 2 * self.decoder.stride, 1, self.decoder.n_embd)
        )
        if self.encoder is not None:
            if self.encoder.frame != self.decoder.frame:
                raise FormatError(
                    f"{heads.path}: frames of {self.decoder.frame} samples are written and of "
                    f"{self.encoder.frame} are heard; it is damaged"
                )
            rows += codec.codec_rows(self.encoder, heads)
            n = 2 * self.encoder.stride
            rows.append(need("a.downsample.conv.weight", n, self.encoder.n_embd, c.n_latent))
        unused = () if hears else ("a.seanet.", "a.blk.", "a.downsample.")
        self.parts = load_weights(heads, rows, unused)
        self._type = find_dtype(type_kv)
        self._caches = [(self._leaf(f"k_{il}"), self._leaf(f"v_{il}")) for il in range(c.n_layer)]
        self._columns, self._heard = Columns(), Columns()
        self._window = Window(self.decoder)
        self._ears = None if self.encoder is None else Window(self.encoder)
        graphs = [self._embedding(), self._reading(), self._framing(), self._decoding()]
        graphs += [self._projecting()] if "a.speaker_proj.weight" in self.parts else []
        graphs += [self._listening(self.encoder)] if self.encoder is not None else []
        for graph in graphs:
            name_tensors(graph)
        self._arenas = arenas = ArenaPool()
        programs = [lower_plan(plan_graph(graph, backends)) for graph in graphs]
        arenas.reserve(*programs)
        arenas.load(*programs)
        sessions = [Session(program, arenas) for program in programs]
        self._programs = programs
        self._embed, self._read, self._frame, self._decode = sessions[:4]
        self._project = sessions[4] if len(sessions) > 4 else None
        self._listen = sessions[5] if len(sessions) > 5 else None
        self._n = 0
        self._n_frames = 0
        self._before = self._columns.first()

    def _leaf(self, name: str) -> Tensor:
        """A cache of the text model."""
        kind, width = self._type, self.config.d * self.config.n_head_kv
        memory = allocate(None, kind.row_bytes(width) * self.n_ctx, name, "the model")
        return Tensor(
            kind, (width, self.n_ctx, 1, 1), name=name, buffer=Buffer("any", None, memory)
        )

    @property
    def frame(self) -> int:
        """Samples of a frame."""
        return self.decoder.frame

    @property
    def room(self) -> int:
        """Number of rows that may follow."""
        return self.n_ctx - self._n

    def explain(self) -> str:
        """The graphs and the bytes of what is in memory."""
        names = ("embed", "read", "frame", "decode", "project", "listen")
        caches = [*self._caches, *self._window.caches]
        caches += [] if self._ears is None else self._ears.caches
        kept = sum(t.buffer.data.nbytes for pair in caches for t in pair if t.buffer is not None)
        rows = [
            ("weights of the text model", self.weights.nbytes),
            ("weights of flow head and codec", self.parts.nbytes),
            (f"caches, for {self.n_ctx} rows", kept),
            ("inputs, results and scratch, shared by all graphs", self._arenas.nbytes),
        ]
        lines = [f"{size_text(n):>10}  {what}" for what, n in rows]
        for name, program in zip(names, self._programs, strict=False):
            places = [f"{len(split.steps)} ops on {split.device}" for split in program.splits]
            lines.append(f"{name:>10}  {', '.join(places)}")
        return "\n".join(lines)

    # ---- what is computed ------------------------------------------------------------------------

    def embed(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The rows f32 [n, n_embd] of tokens."""
        rows = self._embed.run({"tokens": np.asarray(ids, np.int32)})["rows"]
        return np.array(rows, np.float32).reshape(len(ids), self.config.n_embd)

    def project(self, latents: ArrayLike) -> NDArray[np.float32]:
        """The rows f32 [n, n_embd] of the latents [n, n_latent] of a voice."""
        assert self._project is not None
        given = np.asarray(latents, np.float32)
        rows = self._project.run({"latents": given})["rows"]
        return np.array(rows, np.float32).reshape(len(given), self.config.n_embd)

    def read(self, rows: ArrayLike, first: int | None = None) -> None:
        """Reads rows f32 [n, n_embd] behind those that were read, or behind the first `first` of
        them. Raises ContextError if there is no room."""
        given = np.asarray(rows, np.float32)
        n, start = len(given), self._n if first is None else first
        self._require(start + n)
        self._n = start
        for at in range(0, n, _AT_ONCE):
            part = given[at : at + _AT_ONCE]
            self._read.run({"x": part, **self._places(len(part))})
            self._n += len(part)

    def next_frame(
        self, row: ArrayLike, noise: ArrayLike
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        """Reads one row f32 [n_embd] and makes a latent of the noise f32 [n_latent]: the latent,
        the row that stands for it, and the score of the end of speech."""
        self._require(self._n + 1)
        out = self._frame.run(
            {
                "x": np.asarray(row, np.float32).reshape(1, -1),
                "noise": np.asarray(noise, np.float32).reshape(1, -1),
                **self._places(1),
            }
        )
        self._n += 1
        latent, following = (
            np.array(out[name], np.float32).reshape(-1) for name in ("latent", "row")
        )
        return latent, following, float(np.asarray(out["end"]).reshape(-1)[0])

    def _require(self, n: int) -> None:
        if n > self.n_ctx:
            raise ContextError(
                f"voice, text and speech have {n} rows, and there is memory for {self.n_ctx}; give "
                "a shorter voice or shorter sentences"
            )

    def _places(self, n: int) -> dict[str, NDArray[Any]]:
        at = np.arange(self._n, self._n + n)
        seen = np.arange(self._n + n) <= at[:, None]
        return {
            "positions": at.astype(np.int32), "cells": at.astype(np.int64),
            "mask": np.where(seen, 0, -np.inf).astype(np.float16),
        }  # fmt: skip

    def begin(self) -> None:
        """The next latent that is decoded is the first of a sound."""
        self._n_frames, self._before = 0, self._columns.first()

    def decode(self, latent: ArrayLike) -> NDArray[np.float32]:
        """The samples f32 [frame] of a latent f32 [n_latent], behind the samples
        of the latents before."""
        given = np.asarray(latent, np.float32).reshape(1, -1)
        places = self._window.values(self._n_frames)
        out = self._decode.run({"latent": given, **places, **self._before})
        self._n_frames += 1
        self._before = self._columns.following(out)
        return np.array(out["samples"], np.float32).reshape(-1)

    def listen(self, samples: ArrayLike) -> NDArray[np.float32]:
        """The latents f32 [n, n_latent] of a voice; silence follows up to a whole frame."""
        assert self._listen is not None and self._ears is not None
        given = np.asarray(samples, np.float32)
        given = np.pad(given, (0, -len(given) % self.frame))
        before, latents = self._heard.first(), []
        for i, at in enumerate(range(0, len(given), self.frame)):
            out = self._listen.run(
                {
                    "samples": given[at : at + self.frame],
                    "first": np.array([float(i == 0)], np.float32),
                    **self._ears.values(i),
                    **before,
                }
            )
            before = self._heard.following(out)
            latents.append(np.array(out["latent"], np.float32).reshape(-1))
        return np.stack(latents)

    # ---- graphs ----------------------------------------------------------------------------------

    def _embedding(self) -> G.Graph:
        n: Size = G.Sym("n_tokens", 1, self.n_ctx).size
        tokens = G.input("tokens", (n,), "i32")
        return G.Graph(G.get_rows(self.weights["token_embd.weight"], tokens).as_output("rows"))

    def _projecting(self) -> G.Graph:
        n: Size = G.Sym("n_latents", 1, self.n_ctx).size
        latents = G.input("latents", (n, self.config.n_latent), "f32")
        return G.Graph(G.mul_mat(self.parts["a.speaker_proj.weight"], latents).as_output("rows"))

    def _reading(self) -> G.Graph:
        """Rows become keys and values."""
        n: Size = G.Sym("n_rows", 1, _AT_ONCE).size
        writes: list[Tensor] = []
        self._blocks(n, writes, states=False)
        return G.Graph(*writes)

    def _framing(self) -> G.Graph:
        """From a row and noise to a latent, its row, and the score of the end."""
        c, w = self.config, self.parts
        state = self._blocks(1, [], states=True)
        state = common.layer_norm(self.weights, "output_norm", state, c.eps)
        latent = G.input("noise", (1, c.n_latent), "f32")
        condition = common.linear(w, "a.gen.flow.cond_embd", state)
        steps = self.steps if c.n_freqs else 1
        for i in range(steps):
            whole = condition
            if c.n_freqs:
                times = G.add(self._time(0, i / steps), self._time(1, (i + 1) / steps))
                whole = G.add(condition, G.scale(times, 0.5))
            velocity = self._velocity(latent, whole)
            if not c.n_freqs:
                latent = velocity
            else:
                latent = G.add(latent, G.scale(velocity, 1 / steps))
        return G.Graph(
            latent.as_output("latent"),
            G.mul_mat(w["a.gen.input_linear.weight"], latent).as_output("row"),
            common.linear(w, "a.gen.out_eos", state).as_output("end"),
        )

    def _blocks(self, n: Size, writes: list[Tensor], *, states: bool) -> Tensor:
        """The states [n_embd, n] behind the blocks; without `states` the last block only writes its
        keys and values."""
        c, w = self.config, self.weights
        n_kv: Size = G.Sym("n_kv", 1, self.n_ctx).size
        x = G.input("x", (n, c.n_embd), "f32")
        positions, cells = G.input("positions", (n,), "i32"), G.input("cells", (n,), "i64")
        mask = G.input("mask", (n, n_kv), "f16")
        size = self._type.row_bytes(c.d)
        for il, caches in enumerate(self._caches):
            layer = w.layer(il)
            y = common.layer_norm(layer, "attn_norm", x, c.eps)
            q, k, v = (common.linear(layer, f"attn_{name}", y) for name in "qkv")
            q, k = (
                G.rope(
                    G.reshape(t, c.d, n_head, n), positions, mode=c.mode, n_dims=c.d,
                    freq_base=c.base,
                )
                for t, n_head in ((q, c.n_head), (k, c.n_head_kv))
            )  # fmt: skip
            width = c.d * c.n_head_kv
            kept = [
                G.set_rows(cache, G.reshape(t, width, n), cells)
                for cache, t in zip(caches, (k, v), strict=True)
            ]
            if il == c.n_layer - 1 and not states:
                writes += kept
                break
            k, v = (G.view_3d(t, c.d, n_kv, c.n_head_kv, t.nb[1], size) for t in kept)
            q = G.permute(q, 0, 2, 1, 3)
            y = G.flash_attn_ext(q, k, v, mask, scale=1 / math.sqrt(c.d))
            y = common.linear(layer, "attn_output", G.reshape(y, c.d * c.n_head, n))
            x = G.add(x, y).named(f"ffn_inp-{il}")
            y = common.layer_norm(layer, "ffn_norm", x, c.eps)
            y = common.linear(layer, "ffn_down", G.gelu(common.linear(layer, "ffn_up", y)))
            x = G.add(x, y).named(f"l_out-{il}")
        return x

    def _time(self, which: int, t: float) -> Tensor:
        """The embedding [n_flow, 1] of a time of the flow."""
        c, w = self.config, self.parts.part(f"a.gen.flow.time.{which}.")
        angles = G.scale(w["freqs"], t)
        x = G.concat(G.cos(angles), G.sin(angles), 0)
        x = common.linear(w, "down", G.silu(common.linear(w, "up", x)))
        # what is divided is not centred, though the variance it is divided by is
        squares = G.sqr(G.sub(x, G.mean(x)))
        variance = G.scale(G.mean(squares), c.n_flow / max(c.n_flow - 1, 1), TIME_EPS)
        return G.mul(G.div(x, G.sqrt(variance)), w["norm"])

    def _velocity(self, latent: Tensor, condition: Tensor) -> Tensor:
        """The change [n_latent, 1] of a latent in a whole step."""
        c, w = self.config, self.parts.part("a.gen.flow.")
        n = c.n_flow
        x = common.linear(w, "input_proj", latent)
        act = G.silu(condition)

        def parts(name: str, count: int) -> list[Tensor]:
            y = common.linear(w, name, act)
            return [G.view_2d(y, n, 1, y.nb[1], i * n * 4) for i in range(count)]

        for i in range(c.n_blocks):
            shift, scale, gate = parts(f"blk.{i}.ada", 3)
            y = common.layer_norm(w, f"blk.{i}.norm", x, FLOW_EPS)
            y = G.add(G.mul(y, G.scale(scale, 1.0, 1.0)), shift)
            y = common.linear(w, f"blk.{i}.down", G.silu(common.linear(w, f"blk.{i}.up", y)))
            x = G.add(x, G.mul(gate, y))
        shift, scale = parts("final.ada", 2)
        x = G.add(G.mul(G.norm(x, FLOW_EPS), G.scale(scale, 1.0, 1.0)), shift)
        return common.linear(w, "final.proj", x)

    def _decoding(self) -> G.Graph:
        """From a latent to the samples of a frame."""
        c, w, columns = self.decoder, self.parts, self._columns
        latent = G.input("latent", (1, self.config.n_latent), "f32")
        x = G.add(G.mul(latent, w["a.gen.emb_std"]), w["a.gen.emb_mean"])
        x = G.mul_mat(w["a.gen.wav.quant_out.weight"], x)
        x = codec.upsampled(c, w, x, columns)
        x = codec.transformed(w, self._window, x, self._window.inputs())
        samples = codec.decoded(c, w, x, columns)
        return G.Graph(samples.as_output("samples"), *columns.writes)

    def _listening(self, c: SeanetConfig) -> G.Graph:
        """From the samples of a frame to its latent."""
        assert self._ears is not None
        w, columns = self.parts, self._heard
        samples = G.input("samples", (c.frame,), "f32")
        x = codec.encoded(c, w, samples, columns)
        x = codec.transformed(w, self._ears, x, self._ears.inputs())
        latent = codec.downsampled(c, w, x, columns, G.input("first", (1,), "f32"))
        return G.Graph(latent.as_output("latent"), *columns.writes)


_AT_ONCE = 256
"""Rows that are read at a time."""


def open_heads(path: str | os.PathLike[str] | GGUFFile, file: GGUFFile) -> GGUFFile:
    """The file with flow head and codec at `path`. Raises FormatError for another file."""
    if not isinstance(path, GGUFFile):
        path = local_path(path)
        if path.is_dir() and file.path.is_dir() and path != file.path:  # the codec's
            from weft.frontends.hf.towers import open_tower_folder

            path = open_tower_folder(file.path, path)
    heads = open_mmproj(path)
    kind = "clip.gen.audio.projector_type"
    if kind not in heads.metadata:
        raise FormatError(
            f"{heads.path}: this file makes no sound; {file.path.name} needs its own mmproj"
        )
    if projector_of(heads, "gen.audio") != "pockettts_gen":
        raise FormatError(
            f"{heads.path}: it makes sound as {heads.get_str(kind)!r}, which weft does not "
            "compute; known is 'pockettts_gen'"
        )
    return heads

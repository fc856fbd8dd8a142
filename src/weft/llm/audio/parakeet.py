"""Parakeet (arXiv 2305.05084): Fast Conformer, and what writes tokens of its rows: a layer alone
(CTC), or a network of the tokens before that joins it (a transducer), which may also say how many
rows a token takes (TDT, arXiv 2304.06795). A row is of 80 milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.backends.base import Backend
from weft.compiler import lower_plan, plan_graph, resolve_devices
from weft.execute import ArenaPool, Session
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.audio import conformer
from weft.llm.audio.sounds import Samples
from weft.llm.audio.whisper import MOST_HEADS, SoundConfig, tensor_sizes
from weft.llm.config_keys import Keys
from weft.llm.models import common
from weft.llm.models.names import name_tensors
from weft.llm.weights import Row, Weights, load_weights, need, pair
from weft.records import dataclass

FRAME = 0.08
"""Seconds of a row."""
DECODERS = ("ctc", "rnnt", "tdt")


class Said(NamedTuple):
    """A token that was written."""

    id: int
    start: int
    end: int
    """Rows of the encoder."""
    logprob: float
    """Logarithm of its probability."""


@dataclass(frozen=True, slots=True)
class ParakeetConfig:
    """The sizes of encoder and decoder."""

    encoder: SoundConfig
    scale: float
    """The factor of what the convolutions make."""
    decoder: str
    """One of `DECODERS`."""
    n_vocab: int
    blank: int
    """The token that stands for no token."""
    n_embd: int
    n_layer: int
    """Width and layers of the network of the tokens before; of no use for CTC."""
    durations: tuple[int, ...]
    """Rows that a token may take, by number; only for TDT."""
    most: int
    """Maximum number of tokens of a row."""


def read_config(file: GGUFFile) -> ParakeetConfig:
    """Reads the keys `parakeet.*`. Raises FormatError for a wrong key."""
    keys = Keys(file)
    n_embd = keys.count("embedding_length", most=1 << 16)
    n_head = keys.count("attention.head_count", most=MOST_HEADS)
    if n_embd % n_head or n_embd % 2:
        raise keys.bad("attention.head_count", n_head, f"a divisor of {n_embd}, which is even")
    encoder = SoundConfig(
        projector="parakeet",
        n_embd=n_embd,
        n_ff=keys.count("feed_forward_length"),
        n_layer=keys.count("block_count", most=1 << 10),
        n_head=n_head,
        n_out=n_embd,
        eps=conformer.EPS,
        n_mel=keys.count("num_mel_bins", most=1 << 10),
        n_positions=conformer.MOST,
        widths=tensor_sizes(file, conformer.WIDTHS),
    )
    decoder = file.get_str("parakeet.decoder.type")
    if decoder not in DECODERS:
        raise keys.bad("decoder.type", decoder, f"one of {', '.join(DECODERS)}")
    n_vocab = keys.count("vocab_size", most=1 << 24)
    durations: tuple[int, ...] = ()
    if decoder == "tdt":
        durations = tuple(int(n) for n in file.get_array("parakeet.decoder.durations"))
        if (
            not durations
            or len(durations) > 1 << 10
            or not all(0 <= n <= 1 << 10 for n in durations)
        ):
            raise keys.bad("decoder.durations", durations, "counts of rows, from 0 to 1024")
    return ParakeetConfig(
        encoder=encoder,
        scale=n_embd**0.5 if keys.flag("scale_input", False) else 1.0,
        decoder=decoder,
        n_vocab=n_vocab,
        blank=keys.count("blank_token_id", least=0, most=n_vocab - 1),
        n_embd=keys.count("decoder.embedding_length", 1, most=1 << 16),
        n_layer=keys.count("decoder.block_count", 1, most=1 << 6),
        durations=durations,
        most=keys.count("decoder.max_symbols", 10, most=1 << 10),
    )


def rows(c: ParakeetConfig) -> Iterator[Row]:
    """The tensors of a file."""
    yield from conformer.rows(c.encoder)
    n = c.n_embd
    if c.decoder == "ctc":
        yield from pair("ctc.output", c.encoder.n_embd, c.n_vocab)
        return
    yield from pair("enc.output", c.encoder.n_embd, n)
    yield need("token_embd.weight", n, c.n_vocab)
    for il in range(c.n_layer):
        for name in ("input", "hidden"):
            yield from pair(f"dec.blk.{il}.{name}", n, 4 * n)
    yield from pair("dec.output", n, n)
    yield from pair("joint.output", n, c.n_vocab + len(c.durations))


class Parakeet:
    """Encoder and decoder in memory. One thread at a time may use it."""

    def __init__(
        self, file: GGUFFile, *, devices: Sequence[str | Backend] = ("cpu",), **cpu: Any
    ) -> None:
        """`cpu` are options of the device cpu. Raises FormatError for a file that is damaged, and
        OutOfMemoryError."""
        backends = resolve_devices(devices, **cpu)
        self.config = c = read_config(file)
        w = load_weights(file, rows(c))
        graphs = [_hearing(c, w)]
        if c.decoder != "ctc":
            graphs += [_writing(c, w), _joining(c, w)]
        for graph in graphs:
            name_tensors(graph)
        programs = [lower_plan(plan_graph(graph, backends)) for graph in graphs]
        arenas = ArenaPool()
        arenas.reserve(*programs)
        arenas.load(*programs)
        self._hear, *self._others = (Session(program, arenas) for program in programs)

    def heard(self, samples: Samples) -> NDArray[np.float32]:
        """The rows of a part of a sound (`conformer.cut`): for CTC the scores f32 [n, n_vocab],
        else what joins the tokens before [n, n_embd]; none for a sound that is too short."""
        if not conformer.n_rows(len(samples)):
            return np.empty((0, 1), np.float32)
        values = conformer.values(self.config.encoder, samples)
        return np.array(self._hear.run(values)["rows"], np.float32)

    def said(self, samples: Samples) -> list[Said]:
        """The tokens of a part of a sound, in order."""
        rows = self.heard(samples)
        if not len(rows):
            return []
        return list(self._joined(rows) if self._others else _most_probable(self.config, rows))

    def _joined(self, heard: NDArray[np.float32]) -> Iterator[Said]:
        """The tokens of rows by a transducer: where it says no token, or how many rows a token
        takes, it goes on; else it stays, for at most `most` tokens."""
        c = self.config
        state = {
            f"{kind}_{il}": np.zeros((1, c.n_embd), np.float32)
            for il in range(c.n_layer)
            for kind in ("hidden", "cell")
        }
        at, stayed, before = 0, 0, self._after(c.blank, state)
        while at < len(heard):
            values = {"heard": heard[at : at + 1], "before": before}
            scores = np.array(self._others[1].run(values)["scores"][0], np.float32)
            chosen = int(scores[: c.n_vocab].argmax())
            step = c.durations[int(scores[c.n_vocab :].argmax())] if c.durations else 0
            blank = chosen == c.blank
            if not blank:
                end = at + (step if c.durations else 1)
                yield Said(chosen, at, end, _logprob(scores[: c.n_vocab], chosen))
                before = self._after(chosen, state)
            stayed = 0 if step or blank else stayed + 1
            if not step and (blank or stayed >= c.most):
                step, stayed = 1, 0
            at += step

    def _after(self, id_: int, state: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """The result of the network behind a token; it goes on from `state`, and changes it."""
        out = self._others[0].run({"token": np.array([id_], np.int32), **state})
        state.update({name: np.array(out[f"next_{name}"], np.float32) for name in state})
        return np.array(out["before"], np.float32)


def _most_probable(c: ParakeetConfig, scores: NDArray[np.float32]) -> Iterator[Said]:
    """The most probable token of each row; one that follows itself is the same one."""
    ids = scores.argmax(axis=1)
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        chosen = int(ids[start])
        if chosen != c.blank:
            yield Said(chosen, int(start), int(end), _logprob(scores[start], chosen))


def _logprob(scores: NDArray[np.float32], chosen: int) -> float:
    shifted = scores.astype(np.float64) - scores.max()
    return float(shifted[chosen] - np.log(np.exp(shifted).sum()))


# ---- graphs --------------------------------------------------------------------------------------


def _hearing(c: ParakeetConfig, w: Weights) -> G.Graph:
    """From a spectrogram to rows: scores of tokens for CTC, else what joins the tokens before."""
    x = conformer.encoded(c.encoder, w, conformer.inputs(c.encoder), c.scale)
    name = "ctc.output" if c.decoder == "ctc" else "enc.output"
    return G.Graph(common.linear(w, name, x).as_output("rows"))


def _writing(c: ParakeetConfig, w: Weights) -> G.Graph:
    """From a token and the state behind the tokens before it to what joins rows: an LSTM."""
    x = G.get_rows(w["token_embd.weight"], G.input("token", (1,), "i32"))
    outputs: list[Tensor] = []
    for il in range(c.n_layer):
        layer = w.part("dec.").layer(il)
        hidden, cell = (
            G.input(f"{kind}_{il}", (1, c.n_embd), "f32") for kind in ("hidden", "cell")
        )
        y = G.add(common.linear(layer, "input", x), common.linear(layer, "hidden", hidden))
        take, keep, new, show = (
            G.cont(G.view_2d(y, c.n_embd, 1, y.nb[1], part * c.n_embd * y.nb[0]))
            for part in range(4)
        )
        cell = G.add(G.mul(G.sigmoid(keep), cell), G.mul(G.sigmoid(take), G.tanh(new)))
        x = G.mul(G.sigmoid(show), G.tanh(cell))
        outputs += [x.as_output(f"next_hidden_{il}"), cell.as_output(f"next_cell_{il}")]
    return G.Graph(*outputs, common.linear(w, "dec.output", x).as_output("before"))


def _joining(c: ParakeetConfig, w: Weights) -> G.Graph:
    """From a row and the network's result to scores of tokens, and of durations behind them."""
    heard, before = (G.input(name, (1, c.n_embd), "f32") for name in ("heard", "before"))
    scores = common.linear(w, "joint.output", G.relu(G.add(heard, before)))
    return G.Graph(scores.as_output("scores"))

"""The decoder of WavTokenizer (arXiv 2408.16532): codes become a spectrogram, by convolutions and
one attention over all of them (Vocos, arXiv 2306.00814), and that becomes samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as G
from weft.backends.base import Backend
from weft.bounds import SPEECH_CODES
from weft.compiler import lower_plan, plan_graph, resolve_devices
from weft.errors import ContextError, FormatError
from weft.execute import Session
from weft.frontends.gguf import GGUFFile
from weft.frontends.models import open_model
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.llm.config_keys import Keys
from weft.llm.hub import local_path
from weft.llm.models import common
from weft.llm.models.names import name_tensors
from weft.llm.weights import Row, load_weights, need, need_pair
from weft.records import dataclass
from weft.tables import size_text

RATE = 24_000
_RESIDUAL, _ATTENTION, _NORM = (0, 1, 3, 4), 2, 5
"""The blocks of the net of positions."""
_LOUDEST = 100.0
"""Maximum magnitude of a frequency."""


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """The sizes of a decoder."""

    n_codes: int
    n_features: int
    n_embd: int
    n_ff: int
    n_layer: int
    n_groups: int
    eps: float
    group_eps: float
    n_fft: int
    rate: int

    @property
    def hop(self) -> int:
        """Samples of a code."""
        return self.n_fft // 4


def read_vocoder_config(file: GGUFFile) -> VocoderConfig:
    """Reads the keys `wavtokenizer-dec.*`. Raises FormatError for a wrong key."""
    keys = Keys(file)
    n_embd = keys.count("posnet.embedding_length", most=1 << 16)
    n_groups = keys.count("attention.group_norm_groups", most=1 << 16)
    n_out = keys.count("embedding_length", least=10, most=1 << 16)
    if n_embd % n_groups:
        raise keys.bad("attention.group_norm_groups", n_groups, f"a divisor of {n_embd}")
    if keys.count("convnext.embedding_length") != n_embd:
        raise keys.bad("convnext.embedding_length", "another", f"{n_embd}")
    if keys.count("posnet.block_count", 6) != 6:
        raise keys.bad("posnet.block_count", "another", "6")
    if (n_out - 2) % 4:
        raise keys.bad("embedding_length", n_out, "2 more than a multiple of 4")
    return VocoderConfig(
        n_codes=keys.count("vocab_size", most=1 << 20),
        n_features=keys.count("features_length", most=1 << 16),
        n_embd=n_embd,
        n_ff=keys.count("feed_forward_length", most=1 << 18),
        n_layer=keys.count("convnext.block_count", most=1 << 10),
        n_groups=n_groups,
        eps=keys.number("attention.layer_norm_epsilon", 1e-6, above=0.0),
        group_eps=keys.number("attention.group_norm_epsilon", 1e-6, above=0.0),
        n_fft=n_out - 2,
        rate=keys.count("sample_rate", RATE, least=1000, most=1 << 20),
    )


def rows(c: VocoderConfig) -> Iterator[Row]:
    """The tensors of a file."""
    n = c.n_embd
    yield need("token_embd.weight", c.n_features, c.n_codes)
    yield from _conv("conv1d", 7, c.n_features, n)
    for i in _RESIDUAL:
        for part in (1, 2):
            yield need(f"posnet.{i}.norm{part}.weight", 1, n)
            yield need(f"posnet.{i}.norm{part}.bias", 1, n)
            yield from _conv(f"posnet.{i}.conv{part}", 3, n, n)
    for i in (_ATTENTION, _NORM):
        yield need(f"posnet.{i}.attn_norm.weight", 1, n)
        yield need(f"posnet.{i}.attn_norm.bias", 1, n)
    for name in ("q", "k", "v", "output"):
        yield from _conv(f"posnet.{_ATTENTION}.attn_{name}", 1, n, n)
    yield from need_pair("token_embd_norm", n)
    for i in range(c.n_layer):
        yield from _conv(f"convnext.{i}.dw", 7, 1, n)
        yield from need_pair(f"convnext.{i}.norm", n)
        yield from need_pair(f"convnext.{i}.pw1", n, c.n_ff)
        yield from need_pair(f"convnext.{i}.pw2", c.n_ff, n)
        yield need(f"convnext.{i}.gamma.weight", n)
    yield from need_pair("output_norm", n)
    yield from need_pair("output", n, c.n_fft + 2)


def _conv(name: str, k: int, n_in: int, n_out: int) -> Iterator[Row]:
    yield need(f"{name}.weight", k, n_in, n_out)
    yield need(f"{name}.bias", 1, n_out)


class Vocoder:
    """A decoder of WavTokenizer in memory. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str] | GGUFFile,
        *,
        devices: Sequence[str | Backend] = ("cpu",),
        **cpu: Any,
    ) -> None:
        """Opens the folder or GGUF file at `path`; `cpu` has options of the device cpu. Raises
        FormatError for another model and for one that is damaged."""
        backends = resolve_devices(devices, **cpu)
        file = path if isinstance(path, GGUFFile) else open_model(local_path(path))
        if file.architecture != "wavtokenizer-dec":
            raise FormatError(
                f"{file.path}: a {file.architecture} model, and no decoder of WavTokenizer"
            )
        self.file = file
        self.config = c = read_vocoder_config(file)
        self.weights = load_weights(file, rows(c))
        graph = self._build()
        name_tensors(graph)
        self._session = Session(lower_plan(plan_graph(graph, backends)))

    def explain(self) -> str:
        """The bytes of the decoder."""
        return (
            f"{size_text(self.weights.nbytes):>10}  weights of the decoder of sound\n"
            f"{size_text(self._session.arenas.nbytes):>10}  what the decoder computes with"
        )

    def spectrogram(self, codes: Sequence[int]) -> NDArray[np.float32]:
        """The spectrogram of codes, f32 [n, n_fft + 2]: the logarithms of magnitudes, and
        phases. Raises ContextError for codes that there are not, and for too
        many."""
        ids = np.asarray(codes, np.int64).reshape(-1)
        n = self.config.n_codes
        if not 1 <= len(ids) <= SPEECH_CODES:
            raise ContextError(f"there are {len(ids)} codes; give 1 to {SPEECH_CODES} at a time")
        if ids.min() < 0 or ids.max() >= n:
            raise ContextError(f"codes reach from {ids.min()} to {ids.max()}; there are {n}")
        out = self._session.run({"codes": ids.astype(np.int32)})["spectrogram"]
        return np.array(out, np.float32).reshape(len(ids), self.config.n_fft + 2)

    def samples(self, codes: Sequence[int]) -> NDArray[np.float32]:
        """The samples f32 [n hop] of codes, about from -1 to 1."""
        return sounded(self.spectrogram(codes), self.config.hop)

    # ---- the graph: rows x are [channels, n] -----------------------------------------------------

    def _build(self) -> G.Graph:
        c, w = self.config, self.weights
        n: Size = G.Sym("n_codes", 1, SPEECH_CODES).size
        x = G.get_rows(w["token_embd.weight"], G.input("codes", (n,), "i32"))
        x = self._convolved("conv1d", x)
        for i in range(_NORM):
            at = f"posnet.{i}"
            if i == _ATTENTION:
                y = self._grouped(f"{at}.attn_norm", x)
                q, k, v = (self._convolved(f"{at}.attn_{name}", y) for name in "qkv")
                q, k, v = (G.reshape(t, c.n_embd, n, 1) for t in (q, k, v))
                y = G.flash_attn_ext(q, k, v, None, scale=c.n_embd**-0.5)
                y = self._convolved(f"{at}.attn_output", G.reshape(y, c.n_embd, n))
            else:
                y = x
                for part in (1, 2):
                    y = G.silu(self._grouped(f"{at}.norm{part}", y))
                    y = self._convolved(f"{at}.conv{part}", y)
            x = G.add(x, y).named(at)
        x = self._grouped(f"posnet.{_NORM}.attn_norm", x)
        x = common.layer_norm(w, "token_embd_norm", x, c.eps)
        for i in range(c.n_layer):
            layer = w.part(f"convnext.{i}.")
            y = common.layer_norm(layer, "norm", self._by_channel(f"convnext.{i}.dw", x), c.eps)
            y = common.linear(layer, "pw2", G.gelu_erf(common.linear(layer, "pw1", y)))
            x = G.add(x, G.mul(y, layer["gamma.weight"])).named(f"convnext-{i}")
        x = common.layer_norm(w, "output_norm", x, c.eps)
        return G.Graph(common.linear(w, "output", x).as_output("spectrogram"))

    def _convolved(self, name: str, x: Tensor) -> Tensor:
        """A convolution whose results have their inputs on both sides."""
        kernel, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        k, n_in, n_out = (int(size) for size in kernel.ne[:3])  # type: ignore[arg-type]
        if k > 1:
            columns = G.cont(G.transpose(x))
            x = G.im2col(kernel, columns, (1, 0), (k // 2, 0), (1, 0), is_2d=False)
        y = G.mul_mat(G.reshape(kernel, k * n_in, n_out), x)
        return G.add(y, G.reshape(bias, n_out))

    def _by_channel(self, name: str, x: Tensor) -> Tensor:
        """A convolution with a kernel for each channel."""
        kernel, n = self.weights[f"{name}.weight"], x.ne[1]
        k, n_embd = 7, self.config.n_embd
        columns = G.reshape(G.cont(G.transpose(x)), n, 1, n_embd)
        columns = G.im2col(kernel, columns, (1, 0), (k // 2, 0), (1, 0), is_2d=False)
        y = G.mul_mat(kernel, columns)  # [1, n, n_embd]
        y = G.cont(G.transpose(G.reshape(y, n, n_embd)))
        return G.add(y, G.reshape(self.weights[f"{name}.bias"], n_embd))

    def _grouped(self, name: str, x: Tensor) -> Tensor:
        """Norms over all codes and the channels of a group."""
        c, n = self.config, x.ne[1]
        y = G.reshape(G.cont(G.transpose(x)), n, 1, c.n_embd)
        y = G.cont(G.transpose(G.reshape(G.group_norm(y, c.n_groups, c.group_eps), n, c.n_embd)))
        weight, bias = (self.weights[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return G.add(G.mul(y, G.reshape(weight, c.n_embd)), G.reshape(bias, c.n_embd))


def sounded(spectrogram: NDArray[np.float32], hop: int) -> NDArray[np.float32]:
    """The samples of a spectrogram [n, 4 hop + 2]: windows of 4 hops that overlap, without those
    that reach beyond the first and the last code."""
    n_fft = 4 * hop
    half = n_fft // 2 + 1
    size = np.minimum(np.exp(spectrogram[:, :half]), _LOUDEST)
    phase = spectrogram[:, half:]
    frames = np.fft.irfft(size * np.exp(1j * phase.astype(np.float64)), n_fft, axis=1)
    window = np.hanning(n_fft + 1)[:-1]
    out = np.zeros((len(frames) - 1) * hop + n_fft)
    weight = np.zeros_like(out)
    for i, frame in enumerate(frames * window):
        out[i * hop : i * hop + n_fft] += frame
        weight[i * hop : i * hop + n_fft] += window**2
    cut = (n_fft - hop) // 2
    end = len(out) - cut
    return np.asarray(out[cut:end] / np.maximum(weight[cut:end], 1e-11), np.float32)

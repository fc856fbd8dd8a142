"""The sizes and the tensors of Pocket TTS: text model and flow head (`pocket.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as G
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.format import ROPE_HALVES
from weft.llm.config_keys import Keys
from weft.llm.weights import Row, maybe, need, need_pair
from weft.records import dataclass

RATE = 24_000
"""Samples per second, unless the file says otherwise."""
MOST_STEPS = 64
"""Maximum number of steps of the flow."""


@dataclass(frozen=True, slots=True)
class PocketConfig:
    """The sizes of the text model and of the flow head, and how frames are drawn."""

    n_vocab: int
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    d: int
    """Size of a head."""
    n_ctx: int
    eps: float
    base: float
    mode: G.RopeMode
    n_latent: int
    n_flow: int
    """Width of the flow head."""
    n_blocks: int
    n_freqs: int
    """Frequencies of a time; 0: the head has no times, and makes a latent in one step."""
    rate: int
    steps: int
    """Steps of the flow."""
    threshold: float
    """Speech ends where the score of its end is above this."""
    frames_before_end: int
    """Frames in front of which speech does not end."""
    temperature: float
    """Variance of the noise that the flow begins with."""


def read_pocket_config(file: GGUFFile, heads: GGUFFile) -> PocketConfig:
    """Reads the keys of a text model and of the file `heads` beside it. Raises FormatError for a
    wrong key, and for files that do not belong together."""
    keys, beside = Keys(file), Keys(heads)
    n_embd = keys.count("embedding_length", most=1 << 16)
    n_head = keys.count("attention.head_count", most=1 << 12)
    n_head_kv = keys.count("attention.head_count_kv", n_head, most=n_head)
    d = keys.count("attention.key_length", max(n_embd // n_head, 1), most=1 << 12)
    if n_head % n_head_kv:
        raise keys.bad("attention.head_count_kv", n_head_kv, f"a divisor of {n_head}")
    if d % 2:
        raise keys.bad("attention.key_length", d, "even")
    width = beside.count("gen.audio.projection_dim")
    if width != n_embd:
        raise FormatError(
            f"{heads.path}: it reads states of {width} numbers, but those of {file.path} have "
            f"{n_embd}; it belongs to another model"
        )
    n_freqs = 0
    if "a.gen.flow.time.0.freqs" in heads.tensors:
        n_freqs = heads.tensors["a.gen.flow.time.0.freqs"].ne[0]
    n_blocks = 0
    while f"a.gen.flow.blk.{n_blocks}.norm.weight" in heads.tensors:
        n_blocks += 1
    n_latent, n_flow = _sizes(heads, "a.gen.flow.input_proj.weight")
    return PocketConfig(
        n_vocab=keys.n_vocab(), n_embd=n_embd,
        n_ff=keys.count("feed_forward_length", most=1 << 20),
        n_layer=keys.count("block_count", most=1 << 10),
        n_head=n_head, n_head_kv=n_head_kv, d=d,
        n_ctx=keys.count("context_length", least=64),
        eps=keys.number("attention.layer_norm_epsilon", 1e-5, above=0.0),
        base=keys.number("rope.freq_base", 10000.0, above=0.0),
        mode=G.RopeMode.NEOX if file.get_bool(ROPE_HALVES, False) else G.RopeMode.NORMAL,
        n_latent=n_latent, n_flow=n_flow, n_blocks=n_blocks, n_freqs=n_freqs,
        rate=beside.count("gen.audio.sample_rate", RATE, least=1000, most=1 << 20),
        steps=keys.count("speech.flow_steps", 1, most=MOST_STEPS),
        threshold=keys.number("speech.end_threshold", -4.0),
        frames_before_end=keys.count("speech.frames_before_end", 6, least=0, most=1 << 10),
        temperature=keys.number("speech.temperature", 0.7),
    )  # fmt: skip


def _sizes(file: GGUFFile, name: str) -> tuple[int, int]:
    if name not in file.tensors:
        raise FormatError(f"{file.path}: tensor {name} is missing; convert the model again")
    ne = file.tensors[name].ne
    return ne[0], ne[1]


def text_rows(c: PocketConfig) -> Iterator[Row]:
    """The tensors of the text model's file."""
    yield need("token_embd.weight", c.n_embd, c.n_vocab)
    yield from need_pair("output_norm", c.n_embd)
    wide, narrow = c.d * c.n_head, c.d * c.n_head_kv
    for il in range(c.n_layer):
        at = f"blk.{il}"
        yield from need_pair(f"{at}.attn_norm", c.n_embd)
        yield from need_pair(f"{at}.ffn_norm", c.n_embd)
        for name, n_in, n_out in (
            ("attn_q", c.n_embd, wide), ("attn_k", c.n_embd, narrow), ("attn_v", c.n_embd, narrow),
            ("attn_output", wide, c.n_embd), ("ffn_up", c.n_embd, c.n_ff),
            ("ffn_down", c.n_ff, c.n_embd),
        ):  # fmt: skip
            yield need(f"{at}.{name}.weight", n_in, n_out)
            yield maybe(f"{at}.{name}.bias", n_out)


def flow_rows(c: PocketConfig) -> Iterator[Row]:
    """The tensors of the flow head, and of what is between it and the text model."""
    at, n = "a.gen.flow", c.n_flow
    yield from need_pair(f"{at}.input_proj", c.n_latent, n)
    yield from need_pair(f"{at}.cond_embd", c.n_embd, n)
    for i in range(2 if c.n_freqs else 0):
        yield need(f"{at}.time.{i}.freqs", c.n_freqs)
        yield from need_pair(f"{at}.time.{i}.up", 2 * c.n_freqs, n)
        yield from need_pair(f"{at}.time.{i}.down", n, n)
        yield need(f"{at}.time.{i}.norm", n)
    for i in range(c.n_blocks):
        yield from need_pair(f"{at}.blk.{i}.norm", n)
        yield from need_pair(f"{at}.blk.{i}.up", n, n)
        yield from need_pair(f"{at}.blk.{i}.down", n, n)
        yield from need_pair(f"{at}.blk.{i}.ada", n, 3 * n)
    yield from need_pair(f"{at}.final.ada", n, 2 * n)
    yield from need_pair(f"{at}.final.proj", n, c.n_latent)
    yield from need_pair("a.gen.out_eos", c.n_embd, 1)
    yield need("a.gen.input_linear.weight", c.n_latent, c.n_embd)
    yield maybe("a.speaker_proj.weight", c.n_latent, c.n_embd)
    yield need("a.gen.emb_mean", c.n_latent)
    yield need("a.gen.emb_std", c.n_latent)

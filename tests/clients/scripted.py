"""A model that calls one tool and then says one text, as fast as a long prompt can be read: so
that a test of an agent is one of its requests, and not of what a model makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.llm.answers.templates import CALLS
from tests.serve.in_process import DEMO
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf

_CALLS, _TELLS = "<|calls|>", "<|tells|>"
"""The ends of prompts: of one with tools before the first result, and of all others."""
_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>"
    f"{{{{ m.content }}}}{CALLS['hermes']}{{{{ '\\n' }}}}{{% endfor %}}"
    "{% if add_generation_prompt %}"
    "{% if tools and not messages | selectattr('role', 'equalto', 'tool') | list %}"
    f"{_CALLS}{{% else %}}{_TELLS}{{% endif %}}{{% endif %}}"
)
_WIDTH = 64
_PIECE = 7
"""Characters of a token that is written."""
_LOGIT = 1000.0
"""The logit of the token that follows, before the factor of the norm; of all others: 0."""
_NORMAL, _USER_DEFINED = 1, 4


def write_scripted(
    path: Path, tool: str, arguments: Mapping[str, Any], answer: str, n_ctx: int
) -> None:
    """Writes a model with a context of `n_ctx` tokens that calls `tool` with `arguments` if it has
    tools and no result yet, and else says `answer`. No text may have spaces. It has the vocabulary
    of the demo model, and its own tokens behind that."""
    call = json.dumps({"name": tool, "arguments": arguments}, separators=(",", ":"))
    chains = [
        [_CALLS, *_pieces(f"<tool_call>\n{call}\n</tool_call>")], [_TELLS, *_pieces(answer)]
    ]  # fmt: skip
    own = [piece for chain in chains for piece in chain]
    with open_gguf(DEMO) as file:
        tokens, scores, types = (
            list(file.metadata[f"tokenizer.ggml.{name}"])
            for name in ("tokens", "scores", "token_type")
        )
        end = int(file.metadata["tokenizer.ggml.eos_token_id"])
        assert len(set(own)) == len(own) < _WIDTH and not {*own} & {*tokens}, own
        ids = {piece: len(tokens) + i for i, piece in enumerate(own)}
        marks = [_USER_DEFINED if piece in (_CALLS, _TELLS) else _NORMAL for piece in own]
        n_vocab = len(tokens) + len(own)
        sizes = {
            "context_length": n_ctx, "embedding_length": _WIDTH, "feed_forward_length": _WIDTH,
            "block_count": 1, "attention.head_count": 1, "attention.head_count_kv": 1,
            "rope.dimension_count": _WIDTH, "vocab_size": n_vocab,
        }  # fmt: skip
        changed = {
            **{f"llama.{name}": np.uint32(value) for name, value in sizes.items()},
            "tokenizer.ggml.tokens": tokens + own,
            "tokenizer.ggml.scores": np.array([*scores, *[-1e6] * len(own)], np.float32),
            "tokenizer.ggml.token_type": np.array([*types, *marks], np.int32),
            "tokenizer.chat_template": _TEMPLATE,
        }
        follows = {
            ids[piece]: ids.get(after, end)
            for chain in chains
            for piece, after in zip(chain, [*chain[1:], ""], strict=True)
        }
        tensors = [
            (f"{name}.weight", "f32", values.shape[::-1], values)
            for name, values in _weights(n_vocab, follows).items()
        ]
        write_gguf(path, dict(file.copy_metadata()) | changed, tensors)


def _pieces(text: str) -> list[str]:
    return [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]


def _weights(n_vocab: int, follows: Mapping[int, int]) -> dict[str, NDArray[np.float32]]:
    """One layer that adds nothing, between rows with a column for each pair of `follows` (a token
    and the one behind it); tokens that nothing follows have column 0."""
    read = np.zeros((n_vocab, _WIDTH), np.float32)
    read[:, 0] = 1
    said = np.zeros_like(read)
    for column, (token, after) in enumerate(follows.items(), 1):
        read[token] = np.eye(_WIDTH, dtype=np.float32)[column]
        said[after, column] = _LOGIT
    ones = np.ones(_WIDTH, np.float32)
    nothing = np.zeros((_WIDTH, _WIDTH), np.float32)
    blocks = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return {
        "token_embd": read, "output_norm": ones, "output": said,
        "blk.0.attn_norm": ones, "blk.0.ffn_norm": ones,
        **{f"blk.0.{name}": nothing for name in blocks},
    }  # fmt: skip

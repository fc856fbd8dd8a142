"""`Vocab`: the tokens of a model and the rules about special ones, from `tokenizer.ggml.*`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from weft.errors import TokenizerError
from weft.frontends.gguf import GGUFFile

__all__ = ["TokenType", "Vocab"]


class TokenType(IntEnum):
    """What a token is for; the numbers are those of GGUF and of SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts of control tokens that end a turn, for files that do not say so in their metadata.
_END_TEXTS = frozenset(
    (
        b"<|eot_id|>",
        b"<|im_end|>",
        b"<|end|>",
        b"<|return|>",
        b"<|call|>",
        b"<end_of_turn>",
        b"<|endoftext|>",
        b"<|eom_id|>",
        b"<|end_of_text|>",
        b"<EOT>",
        b"_<EOT>",
    )
)


@dataclass(frozen=True, slots=True, eq=False)
class Vocab:
    """Tokens by id, and which ids have a special meaning."""

    model: str
    """Kind of tokenizer, GGUF's `tokenizer.ggml.model`."""
    tokens: list[bytes]
    scores: NDArray[np.float32]
    """Merge priority, larger first; zeros where the model has none."""
    types: NDArray[np.int32]
    bos: int | None
    eos: int | None
    unknown: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    eog: frozenset[int]
    """Tokens that end generation."""

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def from_gguf(file: GGUFFile) -> Vocab:
        """Reads and checks the vocabulary; raises TokenizerError naming what is wrong.

        A key of the wrong type raises FormatError."""
        prefix = "tokenizer.ggml"
        if f"{prefix}.model" not in file.metadata:
            raise TokenizerError(
                f"{file.path} has no tokenizer (no key {prefix}.model); convert the model again "
                "together with its tokenizer files"
            )
        model = file.get_str(f"{prefix}.model")
        tokens = file.get_bytes_list(f"{prefix}.tokens")
        n = len(tokens)
        scores = file.get_array(f"{prefix}.scores", np.zeros(n, np.float32))
        types = file.get_array(f"{prefix}.token_type", np.full(n, TokenType.NORMAL, np.int32))
        for key, array in (("scores", scores), ("token_type", types)):
            if len(array) != n:
                raise TokenizerError(
                    f"{file.path}: {prefix}.{key} has {len(array)} entries for {n} tokens; convert "
                    "the model again"
                )
        spm = model == "llama"  # its ids and rules have defaults that old files rely on

        def special(key: str, default: int | None = None) -> int | None:
            full = f"{prefix}.{key}_token_id"
            id_ = file.get_int(full, default)
            if id_ is not None and not 0 <= id_ < n:
                if full not in file.metadata or id_ in (-1, 0xFFFFFFFF):
                    return None
                raise TokenizerError(f"{file.path}: {full} is {id_}; the tokens are 0..{n - 1}")
            return id_

        bos, eos = special("bos", 1 if spm else None), special("eos", 2 if spm else None)
        kinds = np.asarray(types, np.int32)
        ends = {eos, special("eot"), special("eom")}
        for id_ in np.flatnonzero(kinds == TokenType.CONTROL):
            if tokens[id_] in _END_TEXTS:
                ends.add(int(id_))
        return Vocab(
            model=model,
            tokens=tokens,
            scores=np.asarray(scores, np.float32),
            types=kinds,
            bos=bos,
            eos=eos,
            unknown=special("unknown", 0 if spm else None),
            add_bos=file.get_bool(f"{prefix}.add_bos_token", spm) and bos is not None,
            add_eos=file.get_bool(f"{prefix}.add_eos_token", False) and eos is not None,
            add_space_prefix=file.get_bool(f"{prefix}.add_space_prefix", spm),
            eog=frozenset(id_ for id_ in ends if id_ is not None),
        )

"""Texts by a tokenizer.json that asks for more than weft's own tokenizers have.

A file has it whole, as `tokenizer.huggingface.json`, which is a key of the GGUF specification. The
package `tokenizers` encodes; tokens become bytes again as the file's own keys say.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from weft.errors import TokenizerError
from weft.extras import how_to_install
from weft.frontends.gguf.format import WHOLE_TOKENIZER
from weft.llm.tokenizers.vocab import TokenType, Vocab

_WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
          TokenizerError)  # fmt: skip
"""Errors for a tokenizer.json with values of a wrong kind, or of the package."""
_FRONT = {"add_prefix_space": False, "prepend_scheme": "never"}


class HuggingFaceTokenizer:
    """Encodes texts, special tokens included."""

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError without the package, and for a damaged tokenizer.json."""
        from weft.frontends.hf.package_tokenizer import PackageTokenizers, has_package

        if not has_package():
            raise TokenizerError(
                f"the tokenizer of this file ({WHOLE_TOKENIZER}) needs the package tokenizers; "
                + how_to_install("hf")
            )
        try:
            data = json.loads(vocab.metadata.get_str(WHOLE_TOKENIZER))
        except (ValueError, RecursionError):
            data = None
        model = data.get("model") if isinstance(data, dict) else None
        if not isinstance(model, dict):
            raise TokenizerError(
                f"{WHOLE_TOKENIZER} is not the JSON of a tokenizer; convert the model again"
            )
        data |= dict.fromkeys(("truncation", "padding", "post_processor"))  # these are the caller's
        if model.get("continuing_subword_prefix") and model.get("type", "BPE") == "BPE":
            # the library may end the process where merges are shorter than this
            raise TokenizerError(f"{WHOLE_TOKENIZER} has a continuing_subword_prefix")
        self._data = data
        control = (TokenType.CONTROL, TokenType.UNKNOWN)
        self._hidden = set(np.flatnonzero(np.isin(vocab.types, control)).tolist())
        self._made = PackageTokenizers()
        self.encode("", parse_special=True, continues=False)

    def encode(self, text: str, *, parse_special: bool, continues: bool) -> list[int]:
        """The ids of a text; the options are the same as for `Tokenizer.encode`.

        Raises TokenizerError for a character without a token."""
        key = _key(parse_special, continues)
        try:
            if key not in self._made:
                data = self._data if parse_special else self._without_control_tokens()
                whole = json.dumps(_inside(data) if continues else data)
                self._made.add(key, whole, plain=not parse_special)
            return self._made.encode(key, text)
        except _WRONG as error:
            raise TokenizerError(
                f"{WHOLE_TOKENIZER} cannot encode {text[:40]!r}: {str(error)[:200]}"
            ) from None

    def added_pieces(self, vocab: Vocab) -> dict[int, bytes]:
        """The bytes of added tokens, but for control tokens, by id, as the package decodes them."""
        ids = [row["id"] for row in self._data.get("added_tokens") or ()]
        ids = [i for i in ids if 0 <= i < len(vocab)]
        shown = dict(zip(ids, self._made.named(_key(True, False), ids), strict=True))
        spells = vocab.model in ("llama", "gemma4")
        return {
            i: (text.replace("\u2581", " ") if spells else text).encode()
            for i, text in shown.items()
            if text is not None and vocab.types[i] == TokenType.USER_DEFINED
        }

    def _without_control_tokens(self) -> dict[str, Any]:
        """The same for texts of strangers, in which the model finds no control token either."""
        data, model = dict(self._data), dict(self._data["model"])
        kept = {part for merge in model.get("merges") or () for part in _parts(merge)}
        kept.add(str(model.get("unk_token")))
        hidden = self._hidden - {model.get("unk_id")}

        def name(i: int, text: str) -> str:
            return f"\0{i}" if i in hidden and text not in kept else text

        vocab = model["vocab"]
        if isinstance(vocab, list):
            model["vocab"] = [[name(i, row[0]), row[1]] for i, row in enumerate(vocab)]
        else:
            model["vocab"] = {name(i, text): i for text, i in vocab.items()}
        rows = data.get("added_tokens") or ()
        data["added_tokens"] = [
            {
                **row,
                "content": name(row["id"], row["content"]),
                "special": row["id"] in self._hidden,
            }
            for row in rows
        ]
        return data | {"model": model}


def _key(parse_special: bool, continues: bool) -> str:
    return f"{parse_special} {continues}"


def _parts(merge: str | list[str]) -> tuple[str, ...]:
    """The two tokens of a merge, and the one that they make."""
    a, b = merge.split(" ") if isinstance(merge, str) else merge
    return a, b, a + b


def _inside(step: Any) -> Any:
    """The same for a text that follows another one: nothing is put in front."""
    if isinstance(step, list):
        return [_inside(one) for one in step if not _puts_in_front(one)]
    if not isinstance(step, dict):
        return step
    return {
        key: value
        if key in ("model", "added_tokens")
        else _FRONT.get(key, None if _puts_in_front(value) else _inside(value))
        for key, value in step.items()
    }


def _puts_in_front(step: Any) -> bool:
    return isinstance(step, dict) and step.get("type") == "Prepend"

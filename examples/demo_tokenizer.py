"""The demo model's vocabulary: SentencePiece-style BPE with byte fallback, built from the text.

Pieces merge as GGUF's tokenizer model "llama" (SentencePiece BPE) has it: of all adjacent pairs
whose concatenation is a piece, the one with the highest score first, the leftmost of equals. Digits
and punctuation never merge: numbers are spelled digit by digit, so that sums can be learned.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

SPACE = "\u2581"  # SentencePiece writes a space as this character
UNK, BOS, EOS = 0, 1, 2
BYTE_0 = 3  # token ids 3..258 are the bytes <0x00>..<0xFF>
FIRST_PIECE = BYTE_0 + 256


class Tokenizer:
    """Text to token ids and back, for the pieces (best first) that follow the 256 byte tokens."""

    def __init__(self, pieces: list[str]) -> None:
        specials = ["<unk>", "<s>", "</s>"]
        self.tokens = [*specials, *(f"<0x{b:02X}>" for b in range(256)), *pieces]
        self.scores = [0.0] * FIRST_PIECE + [-float(rank) for rank in range(len(pieces))]
        self._ids = {piece: FIRST_PIECE + rank for rank, piece in enumerate(pieces)}
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without BOS and with no space put in front."""
        ids: list[int] = []
        # No piece has a space after its first character, so words can be merged one by one.
        for word in re.findall(r" ?[^ ]*", text):
            if word not in self._cache:
                self._cache[word] = self._encode_word(word.replace(" ", SPACE))
            ids += self._cache[word]
        return ids

    def _encode_word(self, word: str) -> list[int]:
        symbols = list(word)
        while True:
            merged = [a + b for a, b in pairwise(symbols)]
            found = [(self._ids[piece], i) for i, piece in enumerate(merged) if piece in self._ids]
            if not found:
                break
            _, i = min(found)
            symbols[i : i + 2] = [merged[i]]
        ids: list[int] = []
        for symbol in symbols:
            if symbol in self._ids:
                ids.append(self._ids[symbol])
            else:
                ids += [BYTE_0 + b for b in symbol.encode()]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; <unk>, <s> and </s> give nothing."""
        out = bytearray()
        for i in ids:
            if i >= FIRST_PIECE:
                out += self.tokens[i].replace(SPACE, " ").encode()
            elif i >= BYTE_0:
                out.append(i - BYTE_0)
        return out.decode(errors="replace")


def train(texts: Iterable[str]) -> Tokenizer:
    """Byte-pair encoding until each word (letters, with its leading space) is one piece."""
    text = "\n".join(texts).replace(" ", SPACE)
    words = Counter(re.findall(rf"{SPACE}?[A-Za-z]+", text))
    split = {word: list(word) for word in words}
    merges: list[str] = []
    while True:
        # Counted by the merged text, not by the pair: that is how encoding will look it up.
        pairs: Counter[str] = Counter()
        for word, symbols in split.items():
            for a, b in pairwise(symbols):
                pairs[a + b] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda piece: (-pairs[piece], piece))
        merges.append(best)
        for symbols in split.values():
            i = 0
            while i + 1 < len(symbols):
                if symbols[i] + symbols[i + 1] == best:
                    symbols[i : i + 2] = [best]
                i += 1
    return Tokenizer(merges + sorted(set(text) - {"\n"}))

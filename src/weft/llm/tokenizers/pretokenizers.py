"""Pre-tokenizers, which cut text into words for byte-level vocabularies, by `tokenizer.ggml.pre`.

A pre-tokenizer is a list of steps. Each step cuts the pieces of the step before at the matches of a
regex. The regexes come from the models' `tokenizer.json`, in the form that llama.cpp uses, with
which GGUF files are tested: beyond ASCII it does not distinguish upper-case from lower-case
letters, for example. `characters` says what the classes in a regex stand for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise

from weft.llm.tokenizers.characters import collapse, compile_collapsed, compile_plain, plain
from weft.records import dataclass

Step = str | Callable[[str, list[int]], list[int]]
"""A regex, or a function that makes finer cuts of a text and its cuts."""


@dataclass(frozen=True)
class PreTokenizer:
    """The pre-tokenizer that a value of `tokenizer.ggml.pre` names."""

    steps: tuple[Step, ...]
    late: int = 0
    """Number of steps, counted from the end, that depend on a single word only. They are applied
    once to each distinct word, and the result is cached."""
    ignore_merges: bool = False
    """True if a whole word that is a token stays one, even if merges would split it."""
    add_bos: bool = False
    """True if texts begin with BOS unless the file says otherwise."""
    always_bos: bool = False
    """True if texts begin with BOS, whatever the file says."""
    clean_spaces: bool = True
    """See `Vocab.clean_spaces`."""
    byte_level: bool = True
    """True if tokens are spelled in GPT-2's alphabet of bytes. False: they are text with U+2581 for
    spaces, and unknown characters become byte tokens such as `<0xE2>`."""
    newline_tokens: bool = False
    """True if a run of new lines that is a token stays one, even if merges would split it."""

    @cached_property
    def _steps(self) -> list[Callable[[str, str, list[int]], list[int]]]:
        return [_compile(step) for step in self.steps]

    def split(self, text: str) -> list[str]:
        """Cuts `text` by all steps but the late ones; the pieces together are the text."""
        return _cut(text, self._steps[: len(self.steps) - self.late])

    def split_word(self, word: str) -> list[str]:
        """Cuts a piece from `split` by the late steps."""
        return _cut(word, self._steps[-self.late :]) if self.late else [word]


def _cut(text: str, steps: list[Callable[[str, str, list[int]], list[int]]]) -> list[str]:
    if not text:
        return []
    collapsed, cuts = collapse(text), [0, len(text)]
    for step in steps:
        cuts = step(text, collapsed, cuts)
    return [text[a:b] for a, b in pairwise(cuts)]


def _compile(step: Step) -> Callable[[str, str, list[int]], list[int]]:
    if not isinstance(step, str):
        return lambda text, collapsed, cuts: step(collapsed, cuts)
    if r"\p{" in step:
        classes = compile_collapsed(step)
        return lambda text, collapsed, cuts: _isolate(classes, collapsed, cuts)
    literal = compile_plain(step)
    return lambda text, collapsed, cuts: _isolate(literal, plain(text), cuts)


def _isolate(pattern: re.Pattern[str], text: str, cuts: list[int]) -> list[int]:
    """Adds the ends of all matches to `cuts`; a match never extends beyond its piece."""
    finditer = pattern.finditer
    finer = [0]
    add = finer.append
    start = 0
    for end in cuts[1:]:
        for match in finditer(text, start, end):
            a, b = match.span()
            if a > start:
                add(a)
            if b > a:
                add(b)
            start = b
        if start < end:
            add(end)
            start = end
    return finer


_DIGITS = re.compile("[0-9]+")
_NUMBERS = compile_collapsed(r"[\p{N}]+")


def _group_numbers(collapsed: str, cuts: list[int]) -> list[int]:
    """Cuts numbers into groups of three from the right; the first group may be shorter."""
    finer = set(cuts)
    for start, end in pairwise(cuts):
        for match in _NUMBERS.finditer(collapsed, start, end):
            finer.update(range(match.end(), match.start(), -3))
    return sorted(finer)


def _group_digits(collapsed: str, cuts: list[int]) -> list[int]:
    """Cuts runs of digits into groups of three from the right."""
    finer = set(cuts)
    for start, end in pairwise(cuts):
        for match in _DIGITS.finditer(collapsed, start, end):
            finer.update(range(match.end() - 3, match.start() - 1, -3))
    return sorted(finer)


def _part_last_spaces(collapsed: str, cuts: list[int]) -> list[int]:
    """Cuts in front of the white space at the end of each piece."""
    finer = set(cuts)
    for start, end in pairwise(cuts):
        finer.add(start + len(collapsed[start:end].rstrip(" \t\n\v\f\r")))
    return sorted(finer)


def _any(*alternatives: str) -> str:
    return "|".join(alternatives)


_SPACES = r"\s+(?!\S)|\s+"
_NEWLINES = r"\s*[\r\n]+"
_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}]+"
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_ONE, _UP_TO_3 = r"[\p{N}]", r"[\p{N}]{1,3}"
_HAN_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_LINES = r"[^\n]+|\n+"


def _cased(marks: str, ending: str) -> str:
    """A regex for words such as `Word` and `WORDs`, with capitals at the beginning only."""
    upper, lower = rf"[\p{{Upper}}{marks}]", rf"[\p{{Lower}}{marks}]"
    front = r"[^\r\n\p{L}\p{N}]?"
    return f"{front}{upper}*{lower}+{ending}|{front}{upper}+{lower}*{ending}"


_GPT2 = _any(r"'(?:s|t|re|ve|m|ll|d)", r" ?[\p{L}]+", r" ?[\p{N}]+", r" ?[^\s\p{L}\p{N}]+", _SPACES)
_LLAMA3 = _any(_CONTRACTION, _WORD, _UP_TO_3, _SYMBOLS, _NEWLINES, _SPACES)
_QWEN2 = _any(_CONTRACTION, _WORD, _ONE, _SYMBOLS, _NEWLINES, _SPACES)
_QWEN35 = _any(
    _CONTRACTION, _MARKED_WORD, _ONE, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _NEWLINES, _SPACES
)
_GPT4O_REST = _any(_UP_TO_3, _PATH_SYMBOLS, _NEWLINES, _SPACES)
_GPT4O = _any(_cased("", f"(?:{_CONTRACTION})?"), _GPT4O_REST)
_DEEPSEEK3_WORDS = _any(
    r"[!-/:-@\[-`{-~][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r" ?[\p{P}\p{S}]+"
)
_DEEPSEEK3 = (_UP_TO_3, _HAN_KANA, _any(_DEEPSEEK3_WORDS + r"[\r\n]*", _NEWLINES, _SPACES))
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

# Letters with upper and lower case, as DeepSeek's first tokenizer lists them.
_CASED_LETTERS = (
    r"A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    r"\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    r"\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    r"\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    r"\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    r"\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    r"\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134"
    r"\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    r"\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    r"\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    r"\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    r"\U000118a0-\U000118df\U0001e900-\U0001e943"
)

_TABLE: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"[\p{N}]+", r"[0-9]{3}"), 2),
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
    "jina-v1-en jina-v2-code roberta-bpe mpt olmo jais exaone4": PreTokenizer((_GPT2,)),
    "trillion granite-docling": PreTokenizer((_GPT2,), clean_spaces=False),
    "starcoder refact codeshell exaone minerva-7b mellum2": PreTokenizer((_ONE, _GPT2)),
    "command-r smollm": PreTokenizer((_ONE, _GPT2), clean_spaces=False),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9]{3}"), 1),
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            _ONE,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
        clean_spaces=False,
    ),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            _any(
                *(_CONTRACTION, _WORD, _UP_TO_3, _SYMBOLS, _NEWLINES),
                *(rf"\s{{{1 << i}}}(?!\S)" for i in range(9, 1, -1)),
                r"\s{1,2}(?!\S)|\s",
            ),
        )
    ),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2": PreTokenizer(
        (_QWEN2,), clean_spaces=False
    ),
    "stablelm2 megrez": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), clean_spaces=False),
    "ufakzeka": PreTokenizer(
        (_any(_WORD, _ONE, _SYMBOLS, _NEWLINES, _SPACES),), clean_spaces=False
    ),
    "seed-coder": PreTokenizer(
        (_any(_CONTRACTION, _WORD, _ONE, r" ?[^\s\p{L}\p{N}]+", _NEWLINES, _SPACES),),
        clean_spaces=False,
    ),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (_any(_CONTRACTION, _WORD, _ONE, _SYMBOLS, r"\s*[\r\n]", _SPACES),), clean_spaces=False
    ),
    "exaone-moe": PreTokenizer(
        (
            _any(
                _CONTRACTION,
                r"[^\r\n\p{L}\p{N}]?(?:[\p{L}][\p{M}]*(?: [\p{L}][\p{M}]*)*)+",
                _ONE,
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]",
                _SPACES,
            ),
        )
    ),
    "laguna": PreTokenizer((_LINES, _QWEN2), clean_spaces=False),
    "minicpm5": PreTokenizer(
        (_UP_TO_3, _any(_CONTRACTION, _WORD, r"[\p{N}]+", _SYMBOLS, _NEWLINES, _SPACES)),
        ignore_merges=True,
    ),
    "tekken": PreTokenizer(
        (_any(_cased("", ""), _ONE, _PATH_SYMBOLS, _NEWLINES, _SPACES),),
        ignore_merges=True,
        add_bos=True,
        clean_spaces=False,
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,), clean_spaces=False),
    "granite-embed-multi-97m": PreTokenizer(
        (_any(_cased(r"\p{M}", f"(?:{_CONTRACTION})?"), _GPT4O_REST),),
        ignore_merges=True,
        clean_spaces=False,
    ),
    "tiny_aya cohere2moe": PreTokenizer(
        (_group_numbers, _any(f"{_MARKED_WORD}(?:{_CONTRACTION})?", _GPT4O_REST)),
        clean_spaces=False,
    ),
    "youtu": PreTokenizer(
        (
            _any(
                r"[\uac00-\ud7a3\u3131-\u318e]+",
                r"[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
                r"\ufe30-\ufe4f]+",
                r"[\u3105-\u312f]+",
                _HAN_KANA,
            ),
            _any(f"{_MARKED_WORD}(?:{_CONTRACTION})?", _ONE, _PATH_SYMBOLS, _NEWLINES, _SPACES),
        ),
        ignore_merges=True,
        clean_spaces=False,
    ),
    "kimi-k2": PreTokenizer(
        (
            _any(
                r"[\p{Han}]+",
                rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L-Han}}]+(?:{_CONTRACTION})?",
                _UP_TO_3,
                _SYMBOLS,
                _NEWLINES,
                _SPACES,
            ),
        ),
        clean_spaces=False,
    ),
    "superbpe": PreTokenizer((r"[\p{N}]+", _group_digits), clean_spaces=False),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            _part_last_spaces,
            _CJK,
            r"[\p{N}]+",
        ),
        late=4,
        clean_spaces=False,
    ),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?[\p{L}]+", r"\s?[\p{P}]+", _CJK, _ONE), late=3, clean_spaces=False
    ),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(_DEEPSEEK3, clean_spaces=False),
    "spark2_5": PreTokenizer(
        (_UP_TO_3, _HAN_KANA, _any(_DEEPSEEK3_WORDS, r"[\r\n]", _SPACES), _ONE),
        late=1,
        clean_spaces=False,
    ),
    "afmoe": PreTokenizer(
        (
            _group_numbers,
            # \u8c48 looks like U+F900, where the range was probably meant to begin
            r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
            r"\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
            r"\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
            _any(_DEEPSEEK3_WORDS + r"[\r\n]*", _NEWLINES, _SPACES),
        ),
        clean_spaces=False,
    ),
    "bloom gpt3-finnish": PreTokenizer((_BLOOM,)),
    "poro-chat": PreTokenizer((_BLOOM,), clean_spaces=False),
    "viking": PreTokenizer((_BLOOM, _ONE), clean_spaces=False),
    "gemma4 granite-embed-multi-311m": PreTokenizer(
        (_LINES,), always_bos=True, byte_level=False, newline_tokens=True
    ),
    "sarvam-moe": PreTokenizer((_LINES,), byte_level=False, clean_spaces=False),
}

PRETOKENIZERS = {name: how for names, how in _TABLE.items() for name in names.split()}
"""All pre-tokenizers, by their value of `tokenizer.ggml.pre`."""
PRETOKENIZERS[""] = PRETOKENIZERS["default"]  # for files that are older than the key

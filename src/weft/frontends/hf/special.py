"""Special tokens, merges and chat template of a folder, by the rules of the reference's converter.

Which tokens begin and end a text is found in the post-processor of tokenizer.json, then in
tokenizer_config.json; ids also in config.json. The first that says something counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.frontends.hf.config import Config

KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_NAMES = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # as the format spells them
_WITH_IDS = {"bos", "eos", "unk", "sep", "pad", "mask", "eot", "eom"}
_WITH_FLAGS = ("bos", "eos", "sep")
_SHOWN_SPACE = chr(ord(" ") + 256)


class SpecialTokens:
    """The special tokens of a folder, read from its files."""

    def __init__(
        self,
        c: Config,
        *,
        merges: bool = False,
        n_vocab: int | None = None,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        """`merges` reads the merges too. Ids of `n_vocab` and more do not count."""
        self._c = c
        self._n_vocab = n_vocab
        self._kinds = list(kinds)
        self._tokenizer = c.json("tokenizer.json")
        self._settings = c.json("tokenizer_config.json")
        self.ids: dict[str, int] = {}
        """Ids of special tokens, by kind."""
        self.adds: dict[str, bool] = {}
        """Whether a text gets the special token, by kind."""
        self.merges: list[str] = []
        self.template: str | list[Any] | None = None
        """The chat template, or several by name."""
        self._normalizer: dict[str, bool] = {}
        if merges:
            self.merges = self._read_merges()
        if self._tokenizer:
            self._read_normalizer(self._tokenizer.get("normalizer") or {})
            self._read_post_processor(self._tokenizer.get("post_processor") or {})
        self._brackets = (self._tokenizer.get("model") or {}).get("type") == "WordPiece"
        if self._settings or self._brackets:
            self._read_settings()
        config = c.json("config.json")
        inner = config.get("text_config")
        for kind in self._kinds:
            id_ = config.get(f"{kind}_token_id")
            if id_ is None and isinstance(inner, dict):
                id_ = inner.get(f"{kind}_token_id")
            self.set(kind, id_)

    def set(self, kind: str, id_: object) -> None:
        """Gives a kind its id, unless it has one."""
        if type(id_) is int and id_ >= 0 and (self._n_vocab is None or id_ < self._n_vocab):
            self.ids.setdefault(kind, id_)

    def keys(self) -> Iterator[tuple[str, object]]:
        """Metadata keys and values."""
        if self.merges:
            yield "tokenizer.ggml.merges", self.merges
        for kind, id_ in self.ids.items():
            if kind in _WITH_IDS:
                yield f"tokenizer.ggml.{_NAMES.get(kind, kind)}_token_id", id_
        for kind, flag in self.adds.items():
            if kind in _WITH_FLAGS:
                yield f"tokenizer.ggml.add_{kind}_token", flag
        yield from _template_keys(self.template)
        for name, flag in self._normalizer.items():
            yield f"tokenizer.ggml.normalizer.{name}", flag

    def _read_merges(self) -> list[str]:
        listed = (self._tokenizer.get("model") or {}).get("merges") or []
        if listed:
            return [_merge_text(merge) for merge in listed]
        lines = (self._c.text("merges.txt") or "").split("\n")
        if lines and lines[0].startswith("#"):
            lines = lines[1:]
        pairs = (line.split() for line in lines)
        return [" ".join(pair) for pair in pairs if len(pair) == 2]

    def _read_normalizer(self, normalizer: Mapping[str, Any]) -> None:
        kind = normalizer.get("type")
        if kind == "Lowercase":
            self._normalizer["lowercase"] = True
        elif kind == "StripAccents":
            self._normalizer["strip_accents"] = True
        elif kind == "BertNormalizer":
            for name in ("lowercase", "strip_accents"):
                if normalizer.get(name) is not None:
                    self._normalizer[name] = normalizer[name]
        elif kind == "Sequence":
            for inner in normalizer.get("normalizers") or ():
                self._read_normalizer(inner)
        order = ("lowercase", "strip_accents")
        self._normalizer = {n: self._normalizer[n] for n in order if n in self._normalizer}

    def _read_post_processor(self, processor: Mapping[str, Any]) -> None:
        s = self._settings
        if s:
            for kind, other in (("bos", "cls"), ("eos", "sep")):
                if not s.get(f"{kind}_token") and s.get(f"{other}_token"):
                    s[f"{kind}_token"] = s[f"{other}_token"]
        for step in processor.get("processors") or ([processor] if processor else []):
            kind = step.get("type")
            if kind == "ByteLevel":
                self.adds.setdefault("bos", False)
                self.adds.setdefault("eos", False)
            elif kind == "RobertaProcessing":
                self.adds |= {"bos": True, "eos": True, "sep": True}
                for name, key in (("cls_token", "cls"), ("sep_token", "sep")):
                    if s and not s.get(name) and step.get(key):
                        s[name] = step[key][0]
            elif kind == "TemplateProcessing":
                self._read_template(step)

    def _read_template(self, step: Mapping[str, Any]) -> None:
        """Reads the tokens that a template such as `<s> A </s>` puts in front of a text and behind
        it."""
        s = self._settings
        single = step.get("single") or []
        first = last = None
        if len(single) > 1:
            first, last = _special(single[0]), _special(single[-1])
        if first:
            begins = (s.get("bos_token"), s.get("cls_token"))
            if s and first not in begins:
                for name in ("bos_token", "cls_token"):
                    if not s.get(name):
                        s[name] = first
                begins = (s.get("bos_token"), s.get("cls_token"))
            self.adds["bos"] = not s or first in begins
        if last:
            if s and last != s.get("eos_token"):
                for kind in ("eot", "eom"):
                    if kind not in self._kinds:
                        self._kinds.append(kind)
                        s[f"{kind}_token"] = s.get("eos_token")
                        break
                s["eos_token"] = last
            self.adds["eos"] = True
        self._read_pair(step.get("pair") or [], first, last)

    def _read_pair(self, pair: list[Any], first: str | None, last: str | None) -> None:
        """Whether a template such as `<s> A </s> </s> B </s>` separates two texts."""
        if not pair:
            return
        start = 1 if first and _special(pair[0]) == first else 0
        stop = -1 if last and _special(pair[-1]) == last else None
        pair = pair[start:stop]
        if not pair or (_sequence(pair[0]), _sequence(pair[-1])) != ("A", "B"):
            return
        between = pair[1:-1]
        if not between:
            return
        separators = (self._settings.get("sep_token"), self._settings.get("eos_token"))
        adds = _special(between[0]) in separators and not last
        adds |= len(between) == 2 and _special(between[1]) in separators
        self.adds["sep"] = adds
        if adds and self._settings and not self._settings.get("sep_token"):
            self._settings["sep_token"] = self._settings.get("eos_token")

    def _read_settings(self) -> None:
        s = self._settings
        template = s.get("chat_template") or self._template_file()
        if isinstance(template, str | list):
            self.template = template
        added = {row.get("content"): row.get("id") for row in
                 reversed(self._tokenizer.get("added_tokens") or [])}  # fmt: skip
        for kind in self._kinds:
            flag = s.get(f"add_{kind}_token")
            if isinstance(flag, bool):
                self.adds.setdefault(kind, flag)
            entry = s.get(f"{kind}_token") or (f"[{kind.upper()}]" if self._brackets else None)
            text = entry.get("content") if isinstance(entry, dict) else entry
            if isinstance(text, str):
                self.set(kind, added.get(text))

    def _template_file(self) -> str | list[Any] | None:
        text = self._c.text("chat_template.jinja")
        if text is None:
            return self._c.json("chat_template.json").get("chat_template")
        others = sorted((self._c.folder / "additional_chat_templates").glob("*.jinja"))
        if not others:
            return text
        rows = [{"name": "default", "template": text}]
        return rows + [{"name": p.stem, "template": p.read_text("utf-8")} for p in others]


def _special(part: Mapping[str, Any]) -> str | None:
    return (part.get("SpecialToken") or {}).get("id")


def _sequence(part: Mapping[str, Any]) -> str | None:
    return (part.get("Sequence") or {}).get("id")


def _merge_text(merge: str | list[str]) -> str:
    """A merge as two words; spaces in them are written as byte-level vocabularies write them."""
    if isinstance(merge, str):
        return merge
    return " ".join(part.replace(" ", _SHOWN_SPACE) for part in merge)


def _template_keys(template: str | list[Any] | None) -> Iterator[tuple[str, object]]:
    if template is None:
        return
    if isinstance(template, str):
        yield "tokenizer.chat_template", template
        return
    default, names = None, []
    for row in template:
        name, text = re.sub("[^A-Za-z0-9]", "_", row.get("name", "")), row.get("template")
        if not name or text is None:
            continue
        if name == "default":
            default = text
        else:
            names.append(name)
            yield f"tokenizer.chat_template.{name}", text
    if names:
        yield "tokenizer.chat_templates", list(dict.fromkeys(names))
    if default is not None:
        yield "tokenizer.chat_template", default

"""`Config`: config.json of a Hugging Face folder, as converters read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.errors import FormatError
from weft.files import read_json
from weft.frontends.hf.ranks import hunyuan_tokenizer, kimi_tokenizer, qwen_tokenizer
from weft.frontends.hf.unconfigured import made_config

MOST_LAYERS = 1 << 12
"""Maximum number of layers of a model. There are keys and tensors for each layer before a tensor
could contradict it."""
MOST_WIDTH = 1 << 16
"""Maximum number of elements of a head."""
_TEXT = ("text_config", "llm_config", "lm_config", "language_config", "lfm")
_WIDTH = ("hidden_size", "n_embd", "dim", "d_model")
_HEADS = ("num_attention_heads", "n_heads", "n_head")
_LAYERS = ("n_layers", "num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
_THETA = ("global_rope_theta", "rope_global_theta", "rope_theta_global", "rope_theta",
          "rotary_emb_base")  # fmt: skip
_LOCAL_THETA = ("local_rope_theta", "rope_local_theta", "rope_theta_local", "swa_rope_theta",
                "rope_local_base_freq")  # fmt: skip
_PARTIAL = ("partial_rotary_factor", "rope_pct", "rope_percent")


def read_config_json(folder: Path) -> dict[str, Any]:
    """config.json of `folder`, or what it would say of a model that is published without it. Raises
    FormatError if there is none or it is not an object."""
    path = folder / "config.json"
    if not path.is_file():
        made = made_config(folder)
        if made is not None:
            return made
        if (folder / "adapter_config.json").is_file():
            raise FormatError(
                f"{folder}: an adapter of PEFT, no model; give the model, and this folder as "
                "--lora (adapters=)"
            )
        raise FormatError(
            f"{folder}: a folder without config.json; give a .gguf file, or a folder with "
            "config.json and model.safetensors"
        )
    config = read_json(path, "the model's configuration")
    if not isinstance(config, dict):
        raise FormatError(f"{path}: must be a JSON object")
    return config


def class_of(config: Mapping[str, Any]) -> str:
    """The class of transformers that computes the text, such as `LlamaForCausalLM`; may be
    empty."""
    for source in (text_of(config), config):
        names = source.get("architectures")
        if isinstance(names, list) and names and isinstance(names[0], str):
            return names[0]
    return ""


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json for the text model; empty if it has none of its own."""
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):  # Qwen's models that speak: the part that writes
        config = thinker
    for key in _TEXT:
        text = config.get(key)
        if isinstance(text, dict):
            return text
    return {}


class Config(Mapping[str, Any]):
    """The values of config.json, with the values of the text model in front and `defaults`
    behind."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self._read: dict[str, dict[str, Any]] = {}
        self.cls: str = class_of(config)
        """The class of transformers that computes the text."""
        self.further: Path | None = None
        """A folder with a part of the model, where it was given."""
        layer = config.get("transformer_layer_config")  # of speculators' EAGLE-3
        own = {**config, **text_of(config), **(layer if isinstance(layer, dict) else {})}
        given = {key: value for key, value in own.items() if value is not None}
        self._values: dict[str, Any] = {**(defaults or {}), **given}
        self._nulls = own.keys() - given.keys()
        kinds = self.first("layers_block_type", "layer_types", "hybrid_override_pattern")
        if self.first(*_LAYERS) is None and isinstance(kinds, list | str):
            self._values["num_hidden_layers"] = len(kinds)
        if self._values.get("head_dim") == 0:  # a default that stands for the usual size
            width, n_head = self.first(*_WIDTH), self.first(*_HEADS)
            del self._values["head_dim"]
            if isinstance(width, int) and isinstance(n_head, int) and n_head > 0:
                self._values["head_dim"] = width // n_head
        self.n_layer: int = self.count(*_LAYERS)
        if self.n_layer > MOST_LAYERS:
            raise self.bad(_LAYERS[1], f"is {self.n_layer}; a model has at most {MOST_LAYERS}")
        self.rope: Mapping[str, Any] = self._rope()
        """`rope_parameters`, in today's form."""

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            raise self.bad(key, "is missing") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def is_null(self, key: str) -> bool:
        """True if config.json says null, where a default stands for what is not there."""
        return key in self._nulls

    def first(self, *keys: str) -> Any:
        """The value of the first of `keys` that there is; None: there is none."""
        return next((self._values[key] for key in keys if key in self._values), None)

    def count(self, *keys: str) -> int:
        """The first of `keys` as a count of 0 or more. Raises FormatError if there is none."""
        key = next((key for key in keys if key in self._values), None)
        if key is None:
            names = " or ".join(map(repr, keys))
            raise FormatError(f"{self.folder / 'config.json'}: {names} is missing; it is a number")
        value = self._values[key]
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise self.bad(key, f"is {value!r}, and must be an integer of 0 or more")
        return value

    @property
    def n_head(self) -> int:
        return self.count(*_HEADS)

    @property
    def n_head_kv(self) -> int:
        kv = self.first("num_key_value_heads", "n_kv_heads")
        return kv if isinstance(kv, int) else self.n_head

    @property
    def n_embd(self) -> int:
        """The width of the model."""
        return self.count(*_WIDTH)

    @property
    def head_dim(self) -> int:
        head = self.get("head_dim")
        return head if isinstance(head, int) else self.n_embd // max(self.n_head, 1)

    @property
    def n_expert(self) -> int:
        """Experts of a layer; 0: there are none."""
        names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
                 "moe_num_primary_experts")  # fmt: skip
        return self.first(*names) or 0

    def rope_of(self, kind: str) -> Mapping[str, Any]:
        """The rope parameters of layers of a kind, where kinds have their own."""
        own = self.rope.get(kind)
        return own if isinstance(own, dict) else {}

    @property
    def main_rope(self) -> Mapping[str, Any]:
        """The rope parameters of layers without a window."""
        return self.rope_of("full_attention") or self.rope

    def text(self, name: str) -> str | None:
        """The text of a file of the folder; None if it is not there."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            return path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: cannot be read as UTF-8 text: {error}") from None

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file of the folder; empty if the file is not there. It is kept until
        `forget`, and callers do not change it."""
        if name not in self._read:
            self._read[name] = self._object(name)
        return self._read[name]

    def forget(self) -> None:
        """Drops what `json` keeps: a vocabulary takes many times the bytes of its file."""
        self._read.clear()

    def _object(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        value = read_json(path, "a file of the model") if path.is_file() else {}
        if name == "tokenizer.json" and not value and not (self.folder / "vocab.json").is_file():
            return self._ranked() or self._word_pieces()
        return value if isinstance(value, dict) else {}

    def _ranked(self) -> dict[str, Any]:
        """The tokenizer.json of Kimi's tiktoken.model, Qwen's qwen.tiktoken or Hunyuan's
        hy.tiktoken; empty if none is there."""
        for name, make in (("qwen", qwen_tokenizer), ("hy", hunyuan_tokenizer)):
            path = self.folder / f"{name}.tiktoken"
            if path.is_file():
                return make(path, self.count("vocab_size"))
        path = self.folder / "tiktoken.model"
        if not path.is_file():
            return {}
        named = self.json("tokenizer_config.json").get("added_tokens_decoder")
        ids = map(int, named if isinstance(named, dict) else ())
        return kimi_tokenizer(path, self.count("vocab_size"), frozenset(ids))

    def _word_pieces(self) -> dict[str, Any]:
        """The tokenizer.json that transformers makes of a vocab.txt; empty if that is not there."""
        tokens = (self.text("vocab.txt") or "").removesuffix("\n").split("\n")
        if tokens == [""]:
            return {}
        how = self.json("tokenizer_config.json")
        ids = {text: i for i, text in enumerate(tokens)}
        special = {}
        for kind in ("unk", "cls", "sep", "pad", "mask"):
            given = how.get(f"{kind}_token") or f"[{kind.upper()}]"
            special[kind] = text = str(given["content"] if isinstance(given, dict) else given)
            if text not in ids and kind != "mask":
                raise FormatError(
                    f"{self.folder / 'vocab.txt'} has no token {text!r} ({kind}_token)"
                )
        ends = [{"SpecialToken": {"id": special[kind]}} for kind in ("cls", "sep")]
        return {
            "added_tokens": [
                {"id": ids[text], "content": text, "special": True}
                for text in special.values()
                if text in ids
            ],
            "normalizer": {
                "type": "BertNormalizer", "lowercase": how.get("do_lower_case", True),
                "handle_chinese_chars": how.get("tokenize_chinese_chars", True),
                "strip_accents": how.get("strip_accents"), "clean_text": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [ends[0], {"Sequence": {"id": "A"}}, ends[1]],
            },
            "model": {
                "type": "WordPiece", "vocab": ids, "unk_token": special["unk"],
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            },
        }  # fmt: skip

    def bad(self, key: str, what: str) -> FormatError:
        """The error for a key of config.json; the middle of a long value is left out."""
        if len(what) > 400:
            what = f"{what[:200]} ... {what[-200:]}"
        return FormatError(f"{self.folder / 'config.json'}: {key!r} {what}")

    def _theta(self, rope: dict[str, Any]) -> Any:
        """The base of rotary embeddings. Where each layer has one, it is the base of those that see
        everything, and `rope` gets the base of layers with a window."""
        theta, kinds = self.first(*_THETA), self.get("layer_types")
        if not isinstance(theta, list):
            return theta
        of_kind: dict[str, Any] = {}
        for kind, base in zip(kinds or ["full_attention"] * len(theta), theta, strict=False):
            if of_kind.setdefault(str(kind), base) != base:
                raise self.bad("rope_theta", "differs between layers of a kind")
        if "sliding_attention" in of_kind:
            rope["sliding_attention"] = {"rope_theta": of_kind["sliding_attention"]}
        return of_kind.get("full_attention", theta[0] if theta else None)

    def _rope(self) -> Mapping[str, Any]:
        given = self.first("rope_parameters", "rope_scaling")
        rope: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
        if isinstance(rope.get("indexed_attention"), dict):
            rope.setdefault("full_attention", rope["indexed_attention"])
        if "full_attention" in rope or "sliding_attention" in rope:
            return rope
        local = self.first(*_LOCAL_THETA)
        if local is not None:
            rope["sliding_attention"] = {"rope_theta": local}
        for key, value in (
            ("rope_theta", self._theta(rope)),
            ("rope_type", rope.get("type")),
            ("partial_rotary_factor", self.first(*_PARTIAL)),
            ("original_max_position_embeddings", self.get("original_max_position_embeddings")),
        ):
            if value is not None:
                rope.setdefault(key, value)
        return rope

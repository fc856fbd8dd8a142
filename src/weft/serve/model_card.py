"""`ModelCard`: what lists of models show, read from the file of a model without loading it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.frontends.architectures import FILES
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.mixes import MIXES
from weft.llm import Tokenizer
from weft.llm.answers import AnswerFormat
from weft.llm.chat.template import ChatTemplate
from weft.llm.config_keys import read_config

FIM_ROLES = ("fim_pre", "fim_suf", "fim_mid")
"""The roles of the tokens for infilling."""
_MIXES = {mix.number: name for name, mix in MIXES.items()}
_LONGEST = 1024
"""Maximum number of characters of a string of metadata that is shown."""


def model_fields(name: str, created: int) -> dict[str, Any]:
    """The fields that a model has in Anthropic's lists besides OpenAI's; `created` is a time in
    seconds."""
    at = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "display_name": name, "created_at": at}


class ModelCard:
    """A model as lists of models show it. `file` is open, and stays so."""

    def __init__(
        self,
        name: str,
        file: GGUFFile,
        *,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | None = None,
        senses: tuple[str, ...] = (),
    ) -> None:
        """`senses` says what the model takes besides text: "vision", "audio"."""
        self.name = name
        self.path = Path(file.path)
        self.senses = senses
        self._file = file
        self._tokenizer = tokenizer
        self._template = template

    @property
    def architecture(self) -> str:
        """The kind of model, such as `llama`."""
        return self._file.architecture

    @property
    def format(self) -> str:
        """The format of its files."""
        return "safetensors" if self.path.is_dir() else "gguf"

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return self._file.nbytes

    @cached_property
    def n_params(self) -> int:
        """Number of its weights."""
        return sum(t.n_elements for t in self._file.tensors.values())

    @property
    def parameter_size(self) -> str:
        """The number of weights in short, such as `8.0B`."""
        for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
            if self.n_params >= size:
                return f"{self.n_params / size:.2f}".rstrip("0").rstrip(".") + letter
        return str(self.n_params)

    @cached_property
    def quantization(self) -> str:
        """The file type, such as `Q4_K_M`, or the type of most bytes."""
        number = self._file.metadata.get("general.file_type")
        if isinstance(number, int) and number in _MIXES:
            return _MIXES[number]
        sizes: Counter[str] = Counter()
        for tensor in self._file.tensors.values():
            sizes[tensor.dtype.name] += tensor.nbytes
        return max(sizes, key=sizes.__getitem__, default="none").upper()

    @property
    def modified(self) -> str:
        """When the file was written, as RFC 3339."""
        at = datetime.fromtimestamp(self.path.stat().st_mtime if self.path.exists() else 0, UTC)
        return at.isoformat().replace("+00:00", "Z")

    @property
    def digest(self) -> str:
        """Tells versions of files apart: SHA-256 of path, size and time, not of the contents."""
        text = f"{self.path.resolve()} {self.nbytes} {self.modified}"
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    @property
    def writes(self) -> bool:
        """False for a model that only gives embeddings or scores."""
        if self.architecture in FILES["diffusion"]:
            return True
        config = read_config(self._file)
        return config.causal and config.pooling in ("none", "last")

    @cached_property
    def n_ctx_train(self) -> int:
        """The length that it was trained for."""
        return read_config(self._file).n_ctx_train

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises TokenizerError for a kind that is not known."""
        return self._tokenizer or Tokenizer.from_gguf(self._file)

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template."""
        return self._template or ChatTemplate.from_gguf(self._file, self.tokenizer)

    @property
    def template_text(self) -> str:
        """The source of the template that answers without tools use."""
        return "" if self.template.is_fallback else next(iter(self.template.sources.values()))

    @property
    def infills(self) -> bool:
        """True if it has tokens for infilling."""
        return all(role in self.tokenizer.vocab.special for role in FIM_ROLES)

    @cached_property
    def knows_tools(self) -> bool:
        """True if its template writes tools."""
        try:
            return not self.template.is_fallback and self.template.knows_tools
        except WeftError:
            return False

    @cached_property
    def thinks(self) -> bool:
        """True if its template has marks for reasoning."""
        try:
            return AnswerFormat.of(self.template).thought is not None
        except WeftError:
            return False

    def metadata(self) -> Mapping[str, Any]:
        """The plain values of the file, without lists and long texts."""
        values = {}
        for key in self._file.metadata:
            if self._file.metadata.item_type_of(key) is None:
                value = self._file.metadata[key]
                if not isinstance(value, str) or len(value) <= _LONGEST:
                    values[key] = value
        return values

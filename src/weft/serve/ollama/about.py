"""Models as Ollama's API lists and shows them."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.serve.cards import ModelCard

__all__ = ["details_of", "listed", "same_name", "shown_model"]


def same_name(asked: str, name: str) -> bool:
    """True if `asked` means the model `name`; clients add `:latest` to names without a tag."""
    return asked == name or asked.removesuffix(":latest") == name


def details_of(card: ModelCard) -> dict[str, Any]:
    """Kind and size of a model."""
    return {
        "parent_model": "",
        "format": card.format,
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": card.parameter_size,
        "quantization_level": card.quantization,
    }


def listed(card: ModelCard) -> dict[str, Any]:
    """A model in the list of `/api/tags`."""
    return {
        "name": card.name,
        "model": card.name,
        "modified_at": card.modified,
        "size": card.nbytes,
        "digest": card.digest,
        "details": details_of(card),
        "capabilities": _capabilities(card),
    }


def shown_model(card: ModelCard) -> dict[str, Any]:
    """The answer of `/api/show`."""
    capabilities = _capabilities(card)
    return {
        "license": "",
        "modelfile": f"FROM {card.path.name}\n",
        "parameters": "",
        "template": card.template_text if "completion" in capabilities else "",
        "details": details_of(card),
        "model_info": dict(card.metadata()) | {"general.parameter_count": card.n_params},
        "capabilities": capabilities,
        "modified_at": card.modified,
    }


def _capabilities(card: ModelCard) -> list[str]:
    """What the model can do, in Ollama's words."""
    if not card.writes:
        return ["embedding"]
    try:
        more = {"tools": card.knows_tools, "insert": card.infills, "thinking": card.thinks}
    except WeftError:  # a tokenizer that is not known
        more = {}
    return ["completion", *(name for name, has in more.items() if has), *card.senses]

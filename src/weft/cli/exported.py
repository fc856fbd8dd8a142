"""Commands about .pte files: what they do is in the distribution `weft-executorch`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.errors import WeftError

__all__ = ["explain_pte", "export_gguf", "is_pte"]


def is_pte(model: str | Path) -> bool:
    """Whether a model is an ExecuTorch program, by its name."""
    return str(model).endswith(".pte")


def explain_pte(path: str | Path, steps: bool) -> tuple[dict[str, Any], str]:
    """A .pte file as data and in words.

    Raises WeftError where weft-executorch is not installed, FormatError for a bad file."""
    module = _addon("describe", "explain .pte files")
    found = module.describe(path)
    return found, module.describe_text(found, steps)


def export_gguf(source: str | Path, target: str | Path, **options: Any) -> int:
    """Writes a GGUF model as a .pte file; returns its bytes.

    Raises WeftError where weft-executorch is not installed, and what it raises."""
    with _others_quiet():
        written: int = _addon("gguf", "export models").export_gguf(source, target, **options)
    return written


@contextmanager
def _others_quiet() -> Iterator[None]:
    """While PyTorch and its packages load: what they warn of is not about the user's model."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for others in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", others)
            warnings.filterwarnings("ignore", module=r"(torch|torchao|executorch)(\.|$)")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _addon(name: str, what: str) -> Any:
    try:
        return import_module(f"weft_executorch.{name}")
    except ImportError as error:
        raise WeftError(
            f"to {what}, install weft-executorch (pip install ./executorch in a checkout): {error}"
        ) from error

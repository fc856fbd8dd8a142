"""The commands about .pte files call the distribution `weft-executorch`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.errors import WeftError


def is_pte(model: str | Path) -> bool:
    """True if a model is an ExecuTorch program, by its name."""
    return str(model).endswith(".pte")


def explain_pte(path: str | Path, steps: bool) -> tuple[dict[str, Any], str]:
    """Describes a .pte file, as data and as text.

    Raises WeftError if weft-executorch is not installed, and FormatError for a damaged file."""
    module = _addon("describe", "explain .pte files")
    data = module.describe(path)
    return data, module.describe_text(data, steps)


def pte_report(path: str | Path) -> str:
    """The report of a .pte file as HTML; raises the errors of `explain_pte`."""
    from weft.report import report_html

    return report_html(_addon("report", "explain .pte files").report_data(path))


def export_gguf(source: str | Path, target: str | Path, **options: Any) -> int:
    """Writes a GGUF model as a .pte file; returns the size of the file in bytes.

    Raises WeftError if weft-executorch is not installed, and the errors of its export."""
    with _others_quiet():
        written: int = _addon("gguf", "export models").export_gguf(source, target, **options)
    return written


def keep_list(models: Sequence[str | Path], **options: Any) -> str:
    """The kernels that models need, as the list that CMake's WEFT_KEEP takes.

    Raises WeftError if weft-executorch is not installed, and the errors of its `keep_list`."""
    with _others_quiet():
        text: str = _addon("keep", "list the kernels of models").keep_list(models, **options)
    return text


@contextmanager
def _others_quiet() -> Iterator[None]:
    """Silences warnings of PyTorch and its packages, which are not about the user's model."""
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

"""PyTorch's named results (such as the results of `torch.median` and `torch.sort`) as outputs of
exported programs.

ExecuTorch records how the outputs of a method nest, and PyTorch gives these classes no name to
record: a model that returns one cannot be saved. So they get names here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

__all__ = ["name_results"]


def name_results() -> None:
    """Names the classes without a name; a second call does nothing."""
    tables: Any = _pytree
    for cls in torch.return_types.all_return_types:
        known = tables.SUPPORTED_SERIALIZED_TYPES.get(cls)
        if known is None or known.serialized_type_name != tables.NO_SERIALIZED_TYPE_NAME_FOUND:
            continue
        name = f"torch.return_types.{cls.__name__}"
        tables.SUPPORTED_SERIALIZED_TYPES[cls] = known._replace(serialized_type_name=name)
        tables.SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = cls

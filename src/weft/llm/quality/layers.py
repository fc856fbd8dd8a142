"""A model's layers beside a model of transformers: which tensor is the first that differs?

    import transformers, weft

    model = transformers.AutoModelForCausalLM.from_pretrained("folder")
    print(weft.llm.compare_layers("folder", model, "The capital of France is"))

Hooks keep what modules with weights return, and what layers do. A module belongs to the tensor here
that is made with the same weight.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, FormatError
from weft.extras import how_to_install
from weft.frontends.gguf.format import ROPE_HALVES
from weft.frontends.hf.completed import family_metadata, rotated_elements
from weft.frontends.hf.config import Config
from weft.frontends.hf.families import find_family
from weft.frontends.hf.family import Family, in_order, text_tensors
from weft.frontends.hf.values import Values
from weft.llm.llm import LLM
from weft.llm.models.names import product_name
from weft.llm.quality.beside import TOLERANCES, compare_tensors
from weft.llm.quality.tensor_log import LoggedTensor, TensorLog
from weft.llm.quality.tensor_pairs import TensorComparison

_MOST_VALUES = 1 << 16
"""The largest number of values of a tensor that are compared one by one."""
Hook = Callable[[Any, Any, Any], None]
_LAYER = re.compile(r"(?:.*\.)?(?:layers|layer|h|blocks)\.(\d+)")


def compare_layers(
    llm: LLM | str | os.PathLike[str], other: Any, prompt: str | Sequence[int]
) -> TensorComparison:
    """Computes a prompt, a text or token ids, with a model and with the same model of transformers
    (a `torch.nn.Module`), and compares queries, keys, values, outputs of feed-forward parts, norms
    and layers in order.

    `llm` is an open `LLM` or a model's path, which is opened on the processor. Raises ContextError
    if PyTorch is not installed or `other` is not a model of transformers, and FormatError if it is
    of a class that weft does not know."""
    if isinstance(llm, LLM):
        return _compared(llm, other, prompt)
    n = len(prompt.encode()) + 8 if isinstance(prompt, str) else len(prompt)
    with LLM(llm, n_ctx=n, n_batch=n, n_ubatch=n, devices=["cpu"]) as opened:
        return _compared(opened, other, prompt)


def _compared(llm: LLM, other: Any, prompt: str | Sequence[int]) -> TensorComparison:
    tokens = llm.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
    log = TensorLog(tokens, [_Hooks(llm, other, len(tokens)).run(tokens)], sizes=[len(tokens)])
    kind = str(next(other.parameters()).dtype).removeprefix("torch.")
    least = TOLERANCES.get({"bfloat16": "bf16", "float16": "f16"}.get(kind, "f32"), 0.0)
    return compare_tensors(llm.context, log, tokens, there="transformers", least=least)


class _Hooks:
    """Hooks that keep the outputs of a model's modules for one text."""

    def __init__(self, llm: LLM, other: Any, n_tokens: int) -> None:
        if not hasattr(other, "named_modules") or not hasattr(other, "config"):
            raise ContextError(f"a model of transformers is needed, not {type(other).__name__}")
        values = other.config.to_dict() | {"architectures": [type(other).__name__]}
        self.family: Family = find_family(values)
        self.config = Config(Path(), values, self.family.defaults)
        self.model, self.other, self.n_tokens = llm.context.model, other, n_tokens
        self.found: list[LoggedTensor] = []
        self.n_rotated: int | None = None
        """The elements of a head that rotate, where the file has queries and keys in the order in
        which adjacent pairs do."""
        if self.family.adjacent and not self.model.file.get_bool(ROPE_HALVES, False):
            keys = family_metadata(self.family, self.config)
            self.n_rotated = rotated_elements(self.config, keys)

    def run(self, tokens: Sequence[int]) -> list[LoggedTensor]:
        """Computes the tokens; the outputs of modules in the order in which they ran."""
        try:
            import torch
        except ImportError:
            raise ContextError(
                "compare_layers needs PyTorch and transformers; "
                + how_to_install("torch", "transformers")
            ) from None
        with ExitStack() as stack, torch.no_grad():
            for module, keep in self._modules():
                stack.callback(module.register_forward_hook(keep).remove)
            self.other(torch.tensor([list(tokens)], device=next(self.other.parameters()).device))
        if not self.found:
            raise ContextError("no module of this model has a weight that weft knows by its name")
        return self.found

    def _modules(self) -> Iterator[tuple[Any, Hook]]:
        """Modules with the hooks that keep what they return."""
        modules = dict(self.other.named_modules())
        weights = {
            f"{name}.weight": module
            for name, module in modules.items()
            if getattr(module, "weight", None) is not None
        }
        for name, module in text_tensors(weights):
            yield module, self._weighted(name, module)
        for name, module in modules.items():
            layer = _LAYER.fullmatch(name)
            if layer is not None and any(w.startswith(f"{name}.") for w in weights):
                yield module, self._layer(f"l_out-{layer[1]}")

    def _layer(self, name: str) -> Hook:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            array = self._array(output[0] if isinstance(output, tuple) else output)
            if array is not None:
                self.found.append(_logged(name, "ADD", "", array))

        return hook

    def _weighted(self, name: str, module: Any) -> Hook:
        """Keeps what a module makes of its weight `name`, as the weight in the file would."""
        biased = getattr(module, "bias", None) is not None

        def hook(module: Any, inputs: Any, output: Any) -> None:
            array = self._array(output)
            if array is None or len(inputs) > 1:  # norms with gates make another tensor
                return
            for weight, made in self._changed(name, module, array):
                own, op = _made_by(weight, module, biased)
                self.found.append(_logged(own, op, weight, made))

        return hook

    def _array(self, output: Any) -> NDArray[np.float32] | None:
        """The output [1, n_tokens, ...] of a module without the first size; None for others."""
        if not hasattr(output, "detach"):
            return None
        array: NDArray[np.float32] = output.detach().float().cpu().numpy()
        array = array[0] if array.ndim > 2 and array.shape[0] == 1 else array
        return array if array.shape[0] == self.n_tokens and array.ndim in (2, 3) else None

    def _changed(
        self, name: str, module: Any, array: NDArray[np.float32]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """An output with the changes that converters make to the rows of the weight `name`, another
        order or parts. Changes of columns change no output; with factors, which may be in the
        input, the output is not compared."""
        import torch

        if array.ndim != 2 or not isinstance(module, torch.nn.Linear):
            embeds = isinstance(module, torch.nn.Embedding)
            made = self._through(name, array, changes=embeds)
            yield from ((weight, x) for weight, x in made if x.shape == array.shape)
            return
        counted = np.tile(np.arange(1, self.n_tokens + 1, dtype=np.float32), (array.shape[1], 1))
        probes = dict(self._through(name, counted))
        for weight, rows in self._through(name, np.ascontiguousarray(array.T)):
            probe = probes[weight]
            if probe.shape == rows.shape and np.array_equal(probe, counted[: len(probe)]):
                yield weight, rows.T
            elif np.array_equal(np.sort(probe, 1), counted[: len(probe)]):
                yield weight, array

    def _through(
        self, name: str, rows: NDArray[np.float32], *, changes: bool = True
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """The tensors that a converter would make of `rows`, as the weight `name`, by their names
        in the file; none where it takes no such sizes."""
        values = Values(rows.shape, "f32", lambda: rows)
        try:
            named = self.family.change(self.config, name, values) if changes else [(name, values)]
            for new, value in named:
                if self.n_rotated is not None:
                    value = in_order(self.config, new, value, self.n_rotated)
                yield self.family.gguf_name(self.config, new), value.load()
        except (FormatError, ValueError, IndexError):
            return


def _made_by(weight: str, module: Any, biased: bool) -> tuple[str, str]:
    """Name and op of the tensor that a module with this weight makes."""
    name = product_name(weight, biased=biased)
    if name == "embd":
        scaled = "Scaled" in type(module).__name__
        return ("inp_scaled", "SCALE") if scaled else (name, "GET_ROWS")
    if biased:
        return name, "ADD"
    return name, "MUL" if module.weight.ndim == 1 else "MUL_MAT"


def _logged(name: str, op: str, weight: str, array: NDArray[np.float32]) -> LoggedTensor:
    """An array [n_tokens, ...] as a tensor of a log, with as many of its values as are kept."""
    ne = (*reversed(array.shape), 1, 1)[:4]
    step = math.ceil(array.size / _MOST_VALUES)
    columns = np.arange(0, ne[0], step)
    grid = np.meshgrid(columns, *(np.arange(n) for n in ne[1:]), indexing="ij")
    places = np.stack([axis.reshape(-1) for axis in grid], 1)
    i0, i1, i2, _ = places.T
    values = array[i1, i0] if array.ndim == 2 else array[i2, i1, i0]
    sources = ((weight, ()),) if weight else ()
    return LoggedTensor(
        name, op, "f32", ne, sources, places, values.astype(np.float64),
        float(array.sum(dtype=np.float64)),
    )  # fmt: skip

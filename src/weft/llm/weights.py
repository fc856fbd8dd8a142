"""Loads the weights that an architecture's table lists as graph leaves over the mapped file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from weft.backends.memory import BufferType
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.tensors import TensorInfo
from weft.graph.tensor import Buffer, Tensor, Usage
from weft.records import dataclass

# Tensors that old converters wrote and no model reads, and scales for activations quantized to 4
# bits, which weft does not use.
_UNUSED_SUFFIXES = (
    ".attn_rot_embd", ".rotary_emb.inv_freq", ".input_scale", "blk.0.time_mix_v0.weight",
    "blk.0.time_mix_v1.weight", "blk.0.time_mix_v2.weight", ".cross_attn_rel_b.weight",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A row of an architecture's weight table: a name in the file and sizes, innermost first."""

    name: str
    ne: tuple[int, ...]
    optional: bool = False
    unless: str = ""
    """A tensor that replaces this one: if the file has it, the row does not apply."""


def need(name: str, *ne: int, unless: str = "") -> Row:
    """A row for a tensor that every file of the architecture has, except files with `unless`."""
    return Row(name, ne, unless=unless)


def maybe(name: str, *ne: int) -> Row:
    """A row for a tensor that files may lack."""
    return Row(name, ne, optional=True)


def need_pair(name: str, *ne: int) -> Iterator[Row]:
    """A matrix or a gain, and its bias, which every file of the architecture has."""
    yield need(f"{name}.weight", *ne)
    yield need(f"{name}.bias", ne[-1])


def pair(name: str, *ne: int) -> Iterator[Row]:
    """A matrix or a gain, and the bias that files may lack."""
    yield need(f"{name}.weight", *ne)
    yield maybe(f"{name}.bias", ne[-1])


class Weights(Mapping[str, Tensor]):
    """The leaves of a model, by name. `layer(il)` has those of one layer, without the prefix."""

    def __init__(
        self, leaves: dict[str, Tensor], prefix: str = "", scales: tuple[Tensor, ...] = ()
    ) -> None:
        self._leaves = leaves
        self._prefix = prefix
        self.scales = scales
        """Scales of adapters f32 [n_rows, n], for products with as many columns each."""

    def __getitem__(self, name: str) -> Tensor:
        return self._leaves[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        n = len(self._prefix)
        return (name[n:] for name in self._leaves if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def part(self, prefix: str) -> Weights:
        """The weights whose names begin with `prefix`, by the rest of their names."""
        return Weights(self._leaves, f"{self._prefix}{prefix}", self.scales)

    def layer(self, il: int) -> Weights:
        """The weights called `blk.<il>.*`, by the rest of their names."""
        return self.part(f"blk.{il}.")

    def joined(self, leaves: Mapping[str, Tensor], scales: tuple[Tensor, ...] = ()) -> Weights:
        """The same weights and `leaves`, with `scales` for products with adapters."""
        return Weights({**self._leaves, **leaves}, self._prefix, scales)

    def placed(self, types: Mapping[str, BufferType]) -> Weights:
        """The same weights as new leaves, with the buffer types that `types` has for their full
        names; nothing is read.

        If the file has no `output.weight` and uses the embedding instead, the output becomes a leaf
        of its own if `types` has another buffer type for it."""
        leaves = {
            name: _in_memory(leaf, name, types.get(name)) for name, leaf in self._leaves.items()
        }
        tied, output = "token_embd.weight", "output.weight"
        if output in types and output not in leaves and types[output] is not types.get(tied):
            leaves[output] = _in_memory(self._leaves[tied], output, types[output])
        return Weights(leaves)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, as stored."""
        return sum(self[name].buffer.data.nbytes for name in self)  # type: ignore[union-attr]


def _in_memory(leaf: Tensor, name: str, buffer_type: BufferType | None) -> Tensor:
    assert leaf.buffer is not None
    # all layers use the rotation frequencies, on any device: they must not start a split
    usage: Usage = "any" if name.startswith("rope_f") else "weights"
    buffer = Buffer(usage, buffer_type, leaf.buffer.data, leaf.buffer.offset)
    return Tensor(leaf.dtype, leaf.ne, nb=leaf.nb, name=name, buffer=buffer)


def load_weights(file: GGUFFile, table: Iterable[Row], unused: Iterable[str] = ()) -> Weights:
    """The tensors of `table` as leaves over the mapped file; nothing is read or copied.

    Tensors whose names begin with one of `unused` may be in the file, too. Raises FormatError
    for a tensor that is missing, has other sizes than the table says, or is not in the table: with
    an unknown tensor the model would be computed wrongly."""
    leaves: dict[str, Tensor] = {}
    for row in table:
        if row.unless in file.tensors:
            continue
        info = file.tensors.get(row.name)
        if info is not None:
            leaves[row.name] = _leaf(file, row, info)
        elif not row.optional:
            raise FormatError(
                f"{file.path}: tensor {row.name} of sizes {list(row.ne[::-1])} is missing "
                f"(architecture {file.architecture}); convert the model again"
            )
    known = tuple(unused)
    extra = [
        name
        for name in file.tensors
        if not (name in leaves or name.endswith(_UNUSED_SUFFIXES) or name.startswith(known))
    ]
    if extra:
        shown = ", ".join(extra[:5]) + (", ..." if len(extra) > 5 else "")
        raise FormatError(
            f"{file.path}: {len(extra)} tensors that architecture {file.architecture} does not use "
            f"here ({shown}); ignoring them would give wrong results"
        )
    return Weights(leaves)


def _leaf(file: GGUFFile, row: Row, info: TensorInfo) -> Tensor:
    ne = row.ne + (1,) * (4 - len(row.ne))
    if info.ne != ne:
        raise FormatError(
            f"{file.path}: tensor {row.name} has sizes {list(info.shape)}, but the "
            f"metadata asks for {list(row.ne[::-1])}"
        )
    return Tensor(info.dtype, info.ne, name=row.name, buffer=Buffer("weights", data=info.data))

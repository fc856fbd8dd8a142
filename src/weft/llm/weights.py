"""Names to tensors by table: the weights of a model file as graph leaves, used in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from weft.backends.memory import BufferType
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.tensors import TensorInfo
from weft.graph.tensor import Buffer, Tensor, Usage

__all__ = ["Row", "Weights", "load_weights", "maybe", "need"]

# Tensors that old converters wrote and no model reads, and the scale of activations that are to be
# quantized to 4 bits, which weft's are not.
_UNUSED_SUFFIXES = (".attn_rot_embd", ".rotary_emb.inv_freq", ".input_scale")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of an architecture's weight table: name in the file and sizes, innermost first."""

    name: str
    ne: tuple[int, ...]
    optional: bool = False
    unless: str = ""
    """A tensor that stands for this one: where the file has it, this row is void."""


def need(name: str, *ne: int, unless: str = "") -> Row:
    """A tensor that every file of the architecture has, but for those with `unless`."""
    return Row(name, ne, unless=unless)


def maybe(name: str, *ne: int) -> Row:
    """A tensor that a file may leave out."""
    return Row(name, ne, optional=True)


class Weights(Mapping[str, Tensor]):
    """Leaves by name. `layer(il)` gives those of one layer, by the rest of their names."""

    def __init__(self, leaves: dict[str, Tensor], prefix: str = "") -> None:
        self._leaves = leaves
        self._prefix = prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._leaves[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        n = len(self._prefix)
        return (name[n:] for name in self._leaves if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def layer(self, il: int) -> Weights:
        """The weights called `blk.<il>.*`."""
        return Weights(self._leaves, f"{self._prefix}blk.{il}.")

    def placed(self, types: Mapping[str, BufferType]) -> Weights:
        """The same weights, each in memory of a buffer type, by full name; nothing is read, and
        these leaves stay as they are. A tied output (`output.weight` of `types`, without one here)
        becomes a leaf of its own where it lives elsewhere than the embedding."""
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
    # Rotation frequencies serve all layers, on whatever device: they are no weight that a split
    # would have to start for.
    usage: Usage = "any" if name.startswith("rope_f") else "weights"
    buffer = Buffer(usage, buffer_type, leaf.buffer.data, leaf.buffer.offset)
    return Tensor(leaf.dtype, leaf.ne, nb=leaf.nb, name=name, buffer=buffer)


def load_weights(file: GGUFFile, table: Iterable[Row], unused: Iterable[int] = ()) -> Weights:
    """The tensors of `table` as leaves over the mapped file; nothing is read or copied. `unused`:
    layers whose tensors may be there all the same.

    Raises FormatError for a tensor that is missing, has other sizes than the table says, or is not
    in the table: an unknown tensor means that the model would be computed wrongly."""
    leaves: dict[str, Tensor] = {}
    for row in table:
        if row.unless in file.tensors:
            continue
        info = file.tensors.get(row.name)
        if info is not None:
            leaves[row.name] = _leaf(file, row, info)
        elif not row.optional:
            raise FormatError(
                f"{file.path}: tensor {row.name} of sizes {list(row.ne)} is missing (architecture "
                f"{file.architecture}); convert the model again"
            )
    layers = tuple(f"blk.{il}." for il in unused)
    extra = [
        name
        for name in file.tensors
        if not (name in leaves or name.endswith(_UNUSED_SUFFIXES) or name.startswith(layers))
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
            f"{file.path}: tensor {row.name} has sizes {list(info.ne[: info.n_dims])}, but the "
            f"metadata asks for {list(row.ne)}"
        )
    return Tensor(info.dtype, info.ne, name=row.name, buffer=Buffer("weights", data=info.data))

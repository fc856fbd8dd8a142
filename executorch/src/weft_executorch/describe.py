"""The content of a .pte file: the delegated graphs, the nodes left out, and the reasons."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from weft.dtype import dtype_from_id
from weft.errors import FormatError
from weft.schedule.explain import seconds_text
from weft_executorch import program_generated
from weft_executorch.pte import Method, read_pte

__all__ = ["describe", "describe_text", "read_blob"]

fb: Any = program_generated


def describe(path: str | Path) -> dict[str, Any]:
    """A file as plain data.

    For each method it has the delegated parts (arguments, memory, steps, stages), the operators
    that stayed outside, and the refusals that the exporter recorded. Raises FormatError for a file
    that is not a .pte."""
    nbytes, methods = read_pte(path)
    return {"file": str(path), "bytes": nbytes, "methods": [_method(m) for m in methods]}


def read_blob(processed: bytes) -> Any:
    """The tables of a blob; raises FormatError for bytes that are not a blob."""
    if processed[4:8] != b"WEFT":
        raise FormatError("the delegated data is not weft's")
    try:
        return fb.ProgramT.InitFromObj(fb.Program.GetRootAs(processed, 0))
    except Exception as error:  # a damaged table may point anywhere
        raise FormatError(f"the delegated data is damaged: {error!r}") from None


def _method(method: Method) -> dict[str, Any]:
    parts = [_checked_part(d.data) for d in method.delegates if d.backend == "WeftBackend"]
    left_out = {tuple(row) for part in parts for row in part.pop("left_out")}
    return {
        "name": method.name,
        "parts": parts,
        "other_backends": [d.backend for d in method.delegates if d.backend != "WeftBackend"],
        "delegate_calls": method.delegate_calls,
        "outside": dict(Counter(method.kernels)),
        "left_out": [{"node": n, "op": op, "reason": reason} for n, op, reason in sorted(left_out)],
    }


def _checked_part(data: bytes) -> dict[str, Any]:
    blob = read_blob(data)
    try:
        return _part(blob)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, StopIteration) as e:
        raise FormatError(f"the delegated data is damaged: {e!r}") from None


def _part(blob: Any) -> dict[str, Any]:
    memory = [_name(b.memory) for b in blob.buffers]
    sizes: Counter[str] = Counter()
    for kind, buffer in zip(memory, blob.buffers, strict=True):
        sizes[kind] += buffer.size
    tensors = blob.tensors
    formats = Counter(
        _dtype(t.type) for t in tensors if memory[t.buffer] == "constant" and _is_matrix(t)
    )
    return {
        "inputs": [_value(v, blob) for v in blob.inputs],
        "outputs": [_value(v, blob) for v in blob.outputs],
        "states": [_text(b.name) for b in blob.buffers if _name(b.memory) == "state"],
        "symbols": {_text(s.name): [s.min, s.max] for s in blob.symbols},
        "bytes": dict(sizes),
        "weights": dict(formats),
        "threads": blob.threads,
        "stages": len(blob.stages),
        "steps": [_step(step, number, blob) for number, step in enumerate(blob.steps)],
        "predicted": _prediction(blob.predicted),
        "graph": _text(blob.graph or ""),
        "left_out": [(_text(r.node), _text(r.target), _text(r.reason)) for r in blob.leftOut or ()],
    }


def _prediction(predicted: Any) -> dict[str, Any] | None:
    return predicted and {
        "machine": _text(predicted.machine),
        "seconds": predicted.seconds,
        "devices": [_text(name) for name in predicted.devices],
        "least_seconds": predicted.leastSeconds,
    }


def _step(step: Any, number: int, blob: Any) -> dict[str, Any]:
    stage = next(i for i, s in enumerate(blob.stages) if s.begin <= number < s.end)
    return {
        "step": number,
        "stage": stage,
        "op": _text(blob.ops[step.op]),
        "result": _tensor(blob.tensors[step.dst], blob),
        "sources": [_text(blob.tensors[s].name) for s in step.src if s >= 0],
    }


def _tensor(t: Any, blob: Any) -> str:
    dims = [_size(n, blob) for n in t.ne]
    while len(dims) > 1 and dims[-1] == "1":
        dims.pop()
    return f"{_text(t.name)} {_dtype(t.type)}[{', '.join(reversed(dims))}]"


def _value(v: Any, blob: Any) -> str:
    dims = ", ".join(_size(n, blob) for n in v.dims)
    return f"{_text(v.name)}[{dims}]" if v.scalarType >= 0 else f"{_text(v.name)} = {dims or '-'}"


def _size(size: Any, blob: Any) -> str:
    return str(size.value) if size.expr < 0 else _expr(size.expr, blob)


def _expr(index: int, blob: Any) -> str:
    e = blob.exprs[index]
    if e.kind == 0:
        return str(e.a)
    if e.kind == 1:
        return _text(blob.symbols[e.a].name)
    left, right = _expr(e.a, blob), _expr(e.b, blob)
    return f"({left} {'? ? + * // % min max'.split()[e.kind]} {right})"


def _is_matrix(t: Any) -> bool:
    return bool(t.ne[0].value > 1 and t.ne[1].value > 1)


def _dtype(number: int) -> str:
    dtype = dtype_from_id(number)
    return f"type {number}" if dtype is None else dtype.name


def _name(memory: int) -> str:
    return ("arena", "constant", "state", "input", "output")[memory]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def describe_text(description: dict[str, Any], steps: bool = True) -> str:
    """A result of `describe` in words; `steps` adds a line for each step."""
    lines = [f"{description['file']}: {description['bytes']:,} bytes"]
    for method in description["methods"]:
        lines += ["", f"method {method['name']}: {len(method['parts'])} part(s) on weft"]
        for backend in method["other_backends"]:
            lines.append(f"  a part on {backend}")
        for number, part in enumerate(method["parts"]):
            lines += _part_lines(number, part, steps)
        if method["outside"]:
            lines.append("  outside of any delegate:")
            lines += [f"    {n} x {op}" for op, n in sorted(method["outside"].items())]
        if method["left_out"]:
            lines.append("  left out by weft:")
            lines += [
                f"    {row['node']} ({row['op']}): {row['reason']}" for row in method["left_out"]
            ]
    return "\n".join(lines)


def _part_lines(number: int, part: dict[str, Any], steps: bool) -> list[str]:
    sizes = ", ".join(f"{kind} {n:,} B" for kind, n in sorted(part["bytes"].items()))
    lines = [
        f"  part {number}: {len(part['steps'])} ops in {part['stages']} stages",
        f"    in: {', '.join(part['inputs'])}",
        f"    out: {', '.join(part['outputs'])}",
        f"    memory: {sizes}",
    ]
    if part["weights"]:
        formats = ", ".join(f"{n} in {kind}" for kind, n in sorted(part["weights"].items()))
        lines.append(f"    weight matrices: {formats}")
    if part["states"]:
        lines.append(f"    kept between calls: {', '.join(part['states'])}")
    for name, (low, high) in part["symbols"].items():
        lines.append(f"    size {name}: {low} to {high}")
    if part["predicted"]:
        lines.append(f"    {_prediction_text(part['predicted'])}")
    if steps:
        for step in part["steps"]:
            sources = ", ".join(step["sources"])
            lines.append(
                f"    {step['step']:4} stage {step['stage']:<4} {step['op']:<16} "
                f"{step['result']} <- {sources}"
            )
    return lines


def _prediction_text(predicted: dict[str, Any]) -> str:
    here, least = predicted["seconds"], predicted["least_seconds"]
    text = f'predicted: {seconds_text(here)} a call on the cpu of "{predicted["machine"]}"'
    if len(predicted["devices"]) < 2:
        return text
    devices = ", ".join(predicted["devices"])
    if least >= here:
        return f"{text}, the least over all its devices ({devices})"
    return f"{text}; {seconds_text(least)} over all its devices ({devices}), which no delegate has"

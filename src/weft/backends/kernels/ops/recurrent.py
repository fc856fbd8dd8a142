"""State-space models and linear attention: an item iterates over the tokens of its sequence."""

from __future__ import annotations

from weft.backends.kernels.launch import Call, Launch, Slot, View, f32, i32
from weft.backends.kernels.ops.table import Rule, family, source
from weft.graph.tensor import Tensor

_FILE = "recurrent.cl"


def _f32(n: int) -> Rule:
    """A rule: the first `n` sources are f32 (absent ones do not count)."""

    def refuse(node: Tensor) -> str | None:
        for i in range(n):
            t = source(node, i)
            if t is not None and t.dtype.name != "f32":
                return f"source {i} must be f32, not {t.dtype.name}"
        return None

    return refuse


def _heads(call: Call, size: int, heads: int, n_seq: int) -> tuple[tuple[int, ...], ...]:
    """Grid and group with an item for each of `size` values of every head and sequence."""
    items = call.limits.row_items
    return (-(-size // items), heads, n_seq), (items, 1, 1)


@family("SSM_CONV", refuse=_f32(2))
def _ssm_conv(call: Call) -> list[Launch]:
    x, c, d = call.view(0), call.view(1), call.dst
    return [Launch(_FILE, ("ALL_F32",), "ssm_conv", (x, c, d), *call.elements(d))]


@family("SSM_SCAN", refuse=_f32(6))
def _ssm_scan(call: Call) -> list[Launch]:
    sources = [call.view(i) for i in range(7)]
    _, dim, heads, _ = sources[0].ne
    args = (*sources, call.dst, i32(call.params.k), Slot.FAULT, Slot.STEP)
    grid, group = _heads(call, dim, heads, sources[1].ne[3])
    return [Launch(_FILE, ("ALL_F32",), "ssm_scan", args, grid, group)]


def _by_values(call: Call, which: str, scale: float) -> list[Launch]:
    """Launches a recurrence; `which` names the sources in their order: k, v, r (reads), f (first),
    w (decay), s."""
    by_name = dict(zip(which, (call.view(i) for i in range(len(which))), strict=True))
    k, first, state = by_name["k"], by_name.get("f"), by_name["s"]
    n_seq = state.n_elements // (k.ne[0] * k.ne[0] * k.ne[1])
    args = (
        k, by_name["v"], by_name["r"], first or k, by_name["w"], state, call.dst,
        i32(first is not None), i32(n_seq), f32(scale),
    )  # fmt: skip
    grid, group = _heads(call, k.ne[0], k.ne[1], n_seq)
    return [Launch(_FILE, ("ALL_F32",), "by_values", args, grid, group)]


@family("RWKV_WKV6", refuse=_f32(6))
def _rwkv6(call: Call) -> list[Launch]:
    return _by_values(call, "kvrfws", 1.0)


@family("GATED_LINEAR_ATTN", refuse=_f32(5))
def _linear(call: Call) -> list[Launch]:
    return _by_values(call, "kvrws", call.params.scale)


@family("RWKV_WKV7", refuse=_f32(7))
def _rwkv7(call: Call) -> list[Launch]:
    sources: list[View] = [call.view(i) for i in range(7)]
    k, state = sources[2], sources[6]
    n_seq = state.n_elements // (k.ne[0] * k.ne[0] * k.ne[1])
    grid, group = _heads(call, k.ne[0], k.ne[1], n_seq)
    args = (*sources, call.dst, i32(n_seq))
    return [Launch(_FILE, ("ALL_F32",), "rwkv7", args, grid, group)]


@family("GATED_DELTA_NET", refuse=_f32(6))
def _delta_net(call: Call) -> list[Launch]:
    sources = [call.view(i) for i in range(6)]
    n, heads, _, n_seq = sources[2].ne
    grid, group = _heads(call, n, heads, n_seq)
    args = (*sources, call.dst, i32(call.params.k))
    return [Launch(_FILE, ("ALL_F32",), "delta_net", args, grid, group)]

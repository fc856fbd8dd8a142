"""Products of many tokens that choose experts: columns sorted by expert, in tiles of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.backends.kernel_run import fetch, run, send
from tests.backends.test_products_of_bytes import ROWS, exact_weights, made, whole_numbers
from tests.shares import share
from weft.backends.kernels.launch import Call, View
from weft.backends.kernels.ops.products import PRODUCTS
from weft.dtype import find_dtype
from weft.errors import DeviceError


@pytest.mark.parametrize(
    ("name", "dtype"),
    share("devices", [("webgpu", "q4_0"), ("opencl", "q6_K")], [("webgpu", "q4_0")]),
)
@pytest.mark.parametrize("shared", [True, False])
def test_many_tokens_that_choose_experts(name: str, dtype: str, shared: bool) -> None:
    """Tiles of columns of one expert give the numbers of lanes, where sums are exact. Nobody
    chooses expert 2, and tokens have one column for all slots or one for each."""
    device, rng, slots = made(name), np.random.default_rng(6), 3
    inner, tokens = max(find_dtype(dtype).block, 64), 25
    planes, values = exact_weights(dtype, (inner, ROWS, 5), rng)
    w = send(device, planes, dtype, (inner, ROWS, 5), layout="planes")
    x = whole_numbers((tokens, 1 if shared else slots, inner), rng)
    chosen = rng.choice(np.array([0, 1, 1, 1, 3, 4], np.int32), (tokens, slots + 1))
    whole = send(device, chosen, "i32", (slots + 1, tokens))
    ids = View(whole.dtype, (slots, tokens, 1, 1), whole.nb, 4, whole.buffer)
    sent = send(device, x, "f32", x.shape[::-1])
    want = np.einsum("tsk,tsmk->tsm", np.broadcast_to(x, (tokens, slots, inner)),
                     values[chosen[:, 1:]])  # fmt: skip
    for few in (8, 100):
        d = send(device, np.full((tokens, slots, ROWS), np.nan, np.float32), "f32",
                 (ROWS, slots, tokens))  # fmt: skip
        limits = replace(device.limits, few=few)
        launches = PRODUCTS.launches["MUL_MAT_ID"](
            Call("MUL_MAT_ID", d, (w, sent, ids), None, limits)
        )
        assert launches is not None
        kernels = [launch.kernel for launch in launches]
        assert kernels[1:] == (["by_expert", "gemm_experts"] if few == 8 else ["gemv_experts"])
        run(device, launches)
        np.testing.assert_array_equal(fetch(device, d)[0], want)


def test_an_expert_that_there_is_not() -> None:
    """It is an error that names it, and the other columns have their results."""
    device, rng = made("webgpu"), np.random.default_rng(7)
    planes, values = exact_weights("q4_0", (32, ROWS, 2), rng)
    w = send(device, planes, "q4_0", (32, ROWS, 2), layout="planes")
    x = whole_numbers((9, 1, 32), rng)
    chosen = np.array([0, 1, 1, 0, 7, 1, 0, 0, 1], np.int32)
    ids = send(device, chosen, "i32", (1, 9))
    d = send(device, np.zeros((9, 1, ROWS), np.float32), "f32", (ROWS, 1, 9))
    call = Call("MUL_MAT_ID", d, (w, send(device, x, "f32", (32, 1, 9)), ids), None, device.limits)
    device.driver.watch("MUL_MAT_ID")
    run(device, PRODUCTS.launches["MUL_MAT_ID"](call))
    with pytest.raises(DeviceError, match=r"index 7 is outside 0\.\.1"):
        device.driver.check()
    got, keep = fetch(device, d)[0, :, 0], chosen < 2
    np.testing.assert_array_equal(
        got[keep], np.einsum("tk,tmk->tm", x[keep, 0], values[chosen[keep]])
    )
    assert not got[~keep].any()

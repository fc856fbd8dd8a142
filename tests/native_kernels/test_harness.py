"""The harness itself, on the one family that is always there."""

import numpy as np
import pytest
from golden import judge, op_cases, run_case
from harness import Operand, Refused, refusal, result, run_op, tensor

from tests.targets import BUT_PRODUCTS


@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_adds_strided_operands(target: str) -> None:
    a = np.arange(60, dtype=np.float32).reshape(6, 10)
    window = Operand(a.reshape(-1).view(np.uint8), "f32", (4, 3), (4, 80, 240, 240), 8)
    b = np.float32([[1, 2, 3, 4]])
    got = run_op("ADD", result("f32", (4, 3)), [window, tensor(b)], target=target, n_threads=2)
    np.testing.assert_array_equal(got[0, 0], a[::2, 2:6] + b)


def test_a_shared_memory_is_written_in_place() -> None:
    a = tensor(np.ones((2, 8), np.float32))
    got = run_op("MUL", a, [a, tensor(np.float32([[3]]))])
    np.testing.assert_array_equal(got[0, 0], np.full((2, 8), 3))


def test_refusals_are_sentences() -> None:
    dst, a, b = result("f32", (8,)), tensor(np.ones(8, np.float32)), tensor(np.ones(3, np.float32))
    assert "must be multiples" in str(refusal("ADD", dst, [a, b]))
    with pytest.raises(Refused, match="must be multiples"):
        run_op("ADD", dst, [a, b])


@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("case", op_cases("ADD")[:9], ids=lambda case: case["id"])
def test_recorded_sums(case: dict, target: str) -> None:
    judge(case, run_case(case, target=target))

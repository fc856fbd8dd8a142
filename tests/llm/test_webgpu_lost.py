"""A WebGPU device that is lost: wherever that is met, texts are those of the cpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.webgpu_device import webgpu
from weft.backends.webgpu import WebGPUBackend
from weft.llm import Context, Model

MODEL = Path(__file__).resolve().parents[1] / "data/vectors/models/archs/llama3.gguf"
OPTIONS: dict[str, Any] = {"activations": "f32", "n_threads": 1, "type_k": "f32", "type_v": "f32"}
WANTED: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
PROMPT = [5, 9, 40, 7, 100, 33]
FAULTS = {
    "create": r"webgpu: a buffer of \d+ bytes could not be created",
    "write": r"webgpu: copy of \d+ bytes to the device",
    "prepared": r"split \d on webgpu",
    "launch": r"split \d on webgpu",
    "read_bytes": r"webgpu: copy of \d+ bytes from the device",
}
"""Requests to the driver, and what the error says where the device is lost before one."""


def lose(device: WebGPUBackend, what: str, after: int, patch: pytest.MonkeyPatch) -> None:
    """Destroys the device before a request of one kind, when `after` were made."""
    real, made = getattr(device.driver, what), [0]

    def request(*arguments: Any) -> Any:
        if made[0] == after:
            device.driver._device.destroy()
        made[0] += 1
        return real(*arguments)

    patch.setattr(device.driver, what, request)


@pytest.fixture(scope="module")
def text() -> str:
    return weft.LLM(MODEL, n_ctx=64, **OPTIONS).generate(PROMPT, **WANTED)


@pytest.mark.parametrize(("what", "after"), [
    ("create", 0), ("create", 9), ("write", 0), ("write", 30), ("prepared", 20), ("launch", 0),
    ("launch", 70), ("read_bytes", 0), ("read_bytes", 5),
])  # fmt: skip
def test_a_text_goes_on_without_the_device(
    text: str, what: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At load, in the prompt and between tokens: the text is the cpu's, and so is the next one."""
    device = webgpu()
    options = OPTIONS | {"devices": [device, "cpu"], "fallback": ["cpu"]}
    lose(device, what, after, monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*{FAULTS[what]}.*lost"):
        llm = weft.LLM(MODEL, n_ctx=64, **options)
        got = llm.generate(PROMPT, **WANTED)
    assert got == text and [b.name for b in llm.context.plan.backends] == ["cpu"]
    assert llm.generate(PROMPT, **WANTED) == text


def test_without_a_fallback() -> None:
    """Every request is an error that names the device."""
    device = webgpu()
    memory = device.memory_type.allocate(64)
    device.driver._device.destroy()
    data = np.ones(8, np.uint8)
    for request in (
        lambda: device.memory_type.allocate(64),
        lambda: memory.write(0, data),
        lambda: memory.write(3, data),
        lambda: memory.read(0, 8),
        lambda: memory.copy_from(0, memory, 32, 8),
        lambda: device.driver.clear(memory.buffer, 64) or device.driver.wait(),
        lambda: device.driver.table(b"1234"),
        lambda: device.make_queue().submit(lambda: None).wait(),
        device.driver.wait,
        lambda: device.record_queue(True),
    ):
        with pytest.raises(weft.DeviceError, match=r"webgpu: .*lost"):
            request()


def test_a_profile_ends_without_the_device() -> None:
    """A device is lost while its times are recorded: the text goes on, and the profile ends."""
    device = webgpu()
    context = Context(Model.open(MODEL), 32, devices=[device, "cpu"], fallback=["cpu"], **OPTIONS)
    with context.profile() as profile:
        context.decode([4])
        device.driver._device.destroy()
        with pytest.warns(RuntimeWarning, match=r"going on with cpu: .*device is lost"):
            context.decode([5])
    assert profile.runs >= 1 and device.driver.record is None
    assert context.decode([6]).shape[0] == 1


def test_weights_are_counted_as_they_are_sent() -> None:
    seen: list[tuple[int, int]] = []
    device = webgpu()
    llm = weft.LLM(
        MODEL, n_ctx=64, devices=[device, "cpu"], **OPTIONS,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    needs = {need.memory: need.weights for need in llm.context.plan.needs()}
    sent = needs[device.buffer_type.name]
    assert seen[-1][0] == seen[-1][1] > 0.99 * sent > 0 and len(seen) > 20  # all but padding
    assert device.memory_type.in_use >= seen[-1][1]

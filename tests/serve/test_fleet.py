"""Which models are loaded, with models that only count: order, limits, time, and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from weft.errors import FormatError, OutOfMemoryError
from weft.serve.errors import ApiError
from weft.serve.many import Catalog, Fleet, ManyOptions, SettingsFile, find_models, read_settings
from weft.serve.many.catalog import Entry
from weft.serve.many.loader import Loaded
from weft.serve.many.settings import ModelSettings, parse_duration
from weft.serve.memory import PlannedBytes
from weft.serve.options import ServeOptions


class Model:
    """A service that notes what is done with it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log
        log.append(f"+{name}")

    def close(self, grace: float = 0.0) -> None:
        self._log.append(f"-{self.name}")

    def forget(self) -> None:
        self.name = "gone"


def fleet_of(
    sizes: dict[str, int],
    log: list[str],
    *,
    budget: int | None = 10,
    load: Callable[[Entry], None] = lambda entry: None,
    settings: ModelSettings | None = None,
    **options: Any,
) -> Fleet:
    own = settings or ModelSettings()
    catalog = Catalog(Entry(name, Path(name), own) for name in sizes)

    def loaded(entry: Entry) -> Loaded:
        load(entry)
        return Loaded(Model(entry.name, log), None)  # type: ignore[arg-type]

    return Fleet(
        catalog, ManyOptions(**options), ServeOptions(), budget=budget,
        plan=lambda entry: PlannedBytes(weights=sizes[entry.name]), load=loaded,
    )  # fmt: skip


async def use(fleet: Fleet, name: str, until: asyncio.Event | None = None) -> str:
    async with fleet.lease(fleet.place_of(name)) as loaded:
        assert loaded.service.name == name  # type: ignore[attr-defined]
        if until is not None:
            await until.wait()
        assert loaded.service.name == name  # type: ignore[attr-defined]
    return name


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def settled(fleet: Fleet, **states: str) -> None:
    while {name: fleet.places[name].state for name in states} != states:
        await asyncio.sleep(0.001)


def test_the_one_used_longest_ago_goes() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 4, "b": 4, "c": 4}, log)

    async def work() -> None:
        for name in "abac":
            await use(fleet, name)

    run(work())
    assert log == ["+a", "+b", "-b", "+c"]
    assert fleet.loader.nbytes == 8


def test_several_go_for_a_large_one_and_the_number_is_limited() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 3, "b": 3, "c": 9}, log)

    async def work() -> None:
        for name in "abc":
            await use(fleet, name)

    run(work())
    assert log[:2] == ["+a", "+b"] and log[-1] == "+c" and sorted(log[2:4]) == ["-a", "-b"]
    log.clear()
    fleet = fleet_of({"a": 1, "b": 1, "c": 1}, log, most=2)
    run(work())
    assert log == ["+a", "+b", "-a", "+c"]


def test_none_that_is_used_goes_and_none_is_kept_out() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 6, "b": 6}, log)

    async def work() -> None:
        end = asyncio.Event()
        first = asyncio.create_task(use(fleet, "a", end))
        await settled(fleet, a="loaded")
        other = asyncio.create_task(use(fleet, "b"))
        while not fleet.places["a"].leaves:
            await asyncio.sleep(0.001)
        again = asyncio.create_task(use(fleet, "a"))  # comes behind b
        await asyncio.sleep(0.02)
        assert log == ["+a"] and not other.done() and not again.done()
        end.set()
        await asyncio.gather(first, other, again)

    run(work())
    assert log == ["+a", "-a", "+b", "-b", "+a"]


def test_a_request_that_leaves_lets_the_other_model_stay() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 6, "b": 6}, log)

    async def work() -> None:
        end = asyncio.Event()
        first = asyncio.create_task(use(fleet, "a", end))
        await settled(fleet, a="loaded")
        other = asyncio.create_task(use(fleet, "b"))
        while not fleet.places["a"].leaves:
            await asyncio.sleep(0.001)
        again = asyncio.create_task(use(fleet, "a"))
        await asyncio.sleep(0)
        other.cancel()
        await again
        end.set()
        await first

    run(work())
    assert log == ["+a"] and fleet.places["a"].leases == 0


def test_waiting_is_bounded_in_time_and_number() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 6, "b": 6}, log, wait=0.5, max_waiting=1)

    async def work() -> None:
        end = asyncio.Event()
        first = asyncio.create_task(use(fleet, "a", end))
        await settled(fleet, a="loaded")
        other = asyncio.create_task(use(fleet, "b"))
        while not fleet.places["a"].leaves:
            await asyncio.sleep(0.001)
        with pytest.raises(ApiError, match="1 requests wait") as full:
            await use(fleet, "b")
        assert full.value.status == 503
        with pytest.raises(ApiError, match=r"could not be loaded within 0\.5 seconds"):
            await other
        end.set()
        await first
        assert await use(fleet, "a") == "a"

    run(work())
    assert log == ["+a"]


def test_too_large_alone_is_refused_unloaded() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 4, "b": 11}, log)

    async def work() -> None:
        await use(fleet, "a")
        with pytest.raises(ApiError, match=r"b needs 11 B .*may take 10 B"):
            await use(fleet, "b")

    run(work())
    assert log == ["+a"]


def test_an_error_is_told_and_kept_for_a_while() -> None:
    log: list[str] = []
    tries: list[str] = []

    def load(entry: Entry) -> None:
        if entry.name == "a":
            tries.append("a")
            raise FormatError("it is no model")

    fleet = fleet_of({"a": 4, "b": 4}, log, load=load)

    async def work() -> None:
        for _ in range(3):
            with pytest.raises(ApiError, match="a cannot be loaded: it is no model") as error:
                await use(fleet, "a")
            assert error.value.status == 500
        await use(fleet, "b")
        fleet.places["a"].error_until = 0.0
        with pytest.raises(ApiError):
            await use(fleet, "a")

    run(work())
    assert tries == ["a", "a"] and log == ["+b"]


def test_short_memory_takes_that_of_an_idle_model() -> None:
    log: list[str] = []

    def load(entry: Entry) -> None:
        if entry.name == "b" and "-a" not in log:
            raise OutOfMemoryError("there is none")

    fleet = fleet_of({"a": 4, "b": 4}, log, load=load)

    async def work() -> None:
        await use(fleet, "a")
        await use(fleet, "b")

    run(work())
    assert log == ["+a", "-a", "+b"]


def test_keep_alive() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 4}, log, keep_alive=0.02)

    async def work() -> None:
        end = asyncio.Event()
        first = asyncio.create_task(use(fleet, "a", end))
        await settled(fleet, a="loaded")
        await asyncio.sleep(0.05)
        assert fleet.places["a"].state == "loaded"  # it is used
        end.set()
        await first
        await settled(fleet, a="unloaded")
        await use(fleet, "a")
        fleet.set_keep_alive(fleet.places["a"], None)
        await asyncio.sleep(0.05)
        assert fleet.places["a"].state == "loaded"

    run(work())
    assert log == ["+a", "-a", "+a"]


def test_models_of_the_start_are_loaded_and_all_are_planned() -> None:
    log: list[str] = []
    fleet = fleet_of({"a": 4, "b": 11}, log, settings=ModelSettings(load=True))

    async def work() -> None:
        fleet.begin()
        await settled(fleet, a="loaded")
        while fleet.places["b"].planned is None:
            await asyncio.sleep(0.001)
        other = fleet_of({"c": 3}, log)
        other.begin()
        while other.places["c"].planned is None:
            await asyncio.sleep(0.001)

    run(work())
    assert log == ["+a"]


def test_closing_ends_all_and_sends_away_who_waits() -> None:
    log: list[str] = []
    may_load = threading.Event()

    def load(entry: Entry) -> None:
        if entry.name == "b":
            may_load.wait(10)

    fleet = fleet_of({"a": 4, "b": 4}, log, load=load)

    async def work() -> None:
        await use(fleet, "a")
        other = asyncio.create_task(use(fleet, "b"))
        await settled(fleet, b="loading")
        closing = asyncio.get_running_loop().run_in_executor(None, fleet.close, 0.0)
        with pytest.raises(ApiError, match="the server is stopping"):
            await other
        with pytest.raises(ApiError, match="the server is stopping"):
            await use(fleet, "a")
        may_load.set()
        await closing
        await settled(fleet, b="unloaded")

    run(work())
    assert sorted(log) == ["+a", "+b", "-a", "-b"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300.0), ("1h30m", 5400.0), (30, 30.0), ("10", 10.0), (-1, None), ("-1m", None), (0, 0)],
)
def test_durations(text: Any, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5 minutes", True, "m", [], "nan"])
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(ValueError, match='such as "5m"'):
        parse_duration(text)


def test_a_catalog(tmp_path: Path) -> None:
    for name in (
        *("one-Q4_0.gguf", "mmproj-one.gguf", "mmproj-none.gguf", "notes.txt"),
        *("big/big-00001-of-00002.gguf", "big/big-00002-of-00002.gguf", "big/mmproj-F16.gguf"),
        *("hf/config.json", "hf/model.safetensors", "empty/readme.md", ".hidden/x.gguf"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_models([str(tmp_path)], SettingsFile()).entries
    assert {n: e.path.name for n, e in found.items()} == {
        "big": "big-00001-of-00002.gguf", "hf": "hf", "one-Q4_0": "one-Q4_0.gguf",
    }  # fmt: skip
    assert found["big"].mmproj == tmp_path / "big" / "mmproj-F16.gguf"
    assert found["one-Q4_0"].mmproj == tmp_path / "mmproj-one.gguf"
    named = find_models(
        [f"other={tmp_path / 'one-Q4_0.gguf'}", str(tmp_path / "hf")], SettingsFile()
    )
    assert sorted(named.entries) == ["hf", "other"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 3", "models is no table"),
        ("[other]", "has 'other'; there are"),
        ("[models.a]\nsampling = {heat = 3}", "'heat' is none of"),
        ("[models.a]\nsampling = {top_p = 3}", "top_p is 3"),
        ("[models.a]\nchat-template = 'none.jinja'", "a Jinja template or its file"),
        ("[models.a]\nchat-template-kwargs = {messages = 1}", "is not to be set"),
        ("[defaults]\nlora = ['a.gguf']", "lora are of one model"),
        ("[models.a]\nctx = 3", "has 'ctx'; known are aliases, cache-type-k"),
        ("[models.a]\nparallel = 0", "it must be a whole number, 1 or more"),
        ("[models.a]\nop-offload = 0", "op_offload is 0; write on, off, a least batch"),
        ("[models.a]\nop-offload = 'MULMAT@*=1'", "op_offload names the op MULMAT"),
        ('[models.a]\nkeep-alive = "soon"', 'such as "5m"'),
        ("[defaults]\naliases = ['a']", "are of one model"),
        ("[models.zero]\nload = true", "is of no model; there are a"),
        ("[models.zero]\npath = 'zero.gguf'", "no such file or folder"),
        ("[models.b]\npath = 'a.gguf'\naliases = ['a']", "two models are called 'a'"),
        ("a = ", "is not TOML"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.gguf").touch()
    (tmp_path / "models.toml").write_text(text)
    with pytest.raises(FormatError, match=message):
        find_models([str(tmp_path)], read_settings(tmp_path / "models.toml"))


def test_op_offload_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        "[defaults]\nop-offload = 64\n[models.a]\nop-offload = false\n"
        "[models.b]\nop-offload = {'cuda:0' = 32, 'MUL_MAT_ID@cuda:1' = 'off'}"
    )
    settings = read_settings(tmp_path / "m.toml")
    given = [settings.of(name).arguments["op_offload"] for name in ("a", "b", "c")]
    assert given == [False, {"cuda:0": 32, "MUL_MAT_ID@cuda:1": "off"}, 64]


def test_settings_complete_each_other(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        "[defaults]\nctx-size = 64\nkeep-alive = '1m'\n[models.a]\nkeep-alive = -1\nmmproj = 'x'"
    )
    settings = read_settings(tmp_path / "m.toml")
    own, other = settings.of("a"), settings.of("b")
    assert (own.arguments["n_ctx"], own.keep_alive, own.mmproj) == (64, None, tmp_path / "x")
    assert (other.arguments["n_ctx"], other.keep_alive, other.mmproj) == (64, 60.0, None)

"""What the calls of `LLM` take and return: streams, lists, prompts, options, closing."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.llm.tiny import metadata, write_model
from weft.errors import ArgumentError, ContextError, FormatError, WeftError
from weft.llm import LLM
from weft.llm.generate_options import GENERATE_OPTIONS, GenerateOptions
from weft.llm.planning.options import LLM_OPTIONS, PLAN_OPTIONS, LLMPlanArguments, PlanArguments
from weft.options import option, shows_options

FIXED: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
PROMPTS = ["the abc", "a", "abc abc abc"]


def test_an_option_without_a_type_is_named() -> None:
    more = {**PLAN_OPTIONS, "n_gap": option(None, "Number of cells left free.")}
    with pytest.raises(TypeError, match="option 'n_gap' has no type: PlanArguments needs a key"):
        shows_options(PlanArguments, more, "Options:")(lambda self, **options: None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys: dict[str, Any] = {"tokenizer.chat_template": TEMPLATE}
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**keys))


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, devices=["reference"], n_seq_max=2)


# **** one rule for generate and chat ****


def test_a_text_or_its_pieces(llm: LLM) -> None:
    text = llm.generate("the abc", **FIXED)
    assert isinstance(text, str) and text
    assert llm.generate("the abc", stream=False, **FIXED) == text
    pieces = llm.generate("the abc", stream=True, **FIXED)
    assert isinstance(pieces, Iterator) and not isinstance(pieces, str)
    assert "".join(pieces) == text
    messages = [{"role": "user", "content": "the abc"}]
    answer = llm.chat(messages, **FIXED)
    assert isinstance(answer, str)
    assert "".join(llm.chat(messages, stream=True, **FIXED)) == answer


def test_a_list_of_texts_or_their_pieces(llm: LLM) -> None:
    texts = llm.generate(PROMPTS, **FIXED)
    assert texts == [llm.generate(prompt, **FIXED) for prompt in PROMPTS]
    grown = [""] * len(PROMPTS)
    order = []
    for number, piece in llm.generate(PROMPTS, stream=True, **FIXED):
        assert piece
        grown[number] += piece
        order.append(number)
    assert grown == texts
    assert order != sorted(order), "two sequences: their pieces come in turns"
    assert llm.stats.n_generated == 12 * len(PROMPTS)


def test_a_text_takes_the_turn_of_a_stream_of_several(llm: LLM) -> None:
    pieces = llm.generate(PROMPTS, stream=True, **FIXED)
    next(pieces)
    want = llm.generate("abc", **FIXED)
    with pytest.raises(ContextError, match="has taken the context over"):
        list(pieces)
    assert llm.generate("abc", **FIXED) == want
    assert llm.stats.n_cached > 0, "the stream that lost its turn must leave the cache alone"


def test_options_are_checked_before_a_stream_is_read(llm: LLM) -> None:
    with pytest.raises(ContextError, match="max_tokens is 0"):
        llm.generate("a", stream=True, max_tokens=0)
    with pytest.raises(ContextError, match=r"max_tokens is 2\.5"):
        llm.generate("a", max_tokens=2.5)  # type: ignore[arg-type]


# **** prompts ****


def test_prompts_that_are_none(llm: LLM) -> None:
    with pytest.raises(ArgumentError, match=r"the prompt is bytes; give text, e.g. prompt.decode"):
        llm.generate(b"the abc")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="the prompt is NoneType; give text, a list of token ids"):
        llm.generate(None)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match=r"2\.5 is no token id"):
        llm.generate([1, 2.5])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="the prompt is bytes"):
        llm.generate(["a", b"b"])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="the prompt is NoneType"):
        llm.generate(["a", None])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="itself a list of prompts"):
        llm.generate([["a"], ["b"]])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="the prompt is bytes"):
        llm.embed(b"abc")  # type: ignore[arg-type]


def test_messages_that_are_none(llm: LLM) -> None:
    for given in ("Hello", None):
        with pytest.raises(ArgumentError, match=r"messages are a list.*; got (str|None)"):
            llm.chat(given)  # type: ignore[call-overload]


def test_no_prompts_give_no_texts(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert list(llm.generate([], stream=True)) == []
    assert llm.embed([]).shape == (0, llm.model.config.n_embd)


def test_ids_of_numpy(llm: LLM) -> None:
    ids = llm.tokenize("the abc")
    want = llm.generate(ids, **FIXED)
    assert llm.generate(np.array(ids), **FIXED) == want  # type: ignore[call-overload]
    assert llm.generate([np.array(ids)], **FIXED) == [want]  # type: ignore[list-item]


# **** options ****


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("temp", "temperature"),
        ("max_new_tokens", "max_tokens"),
        ("num_predict", "max_tokens"),
        ("n_predict", "max_tokens"),
        ("repetition_penalty", "repeat_penalty"),
        ("tempreature", "temperature"),
        ("stops", "stop"),
    ],
)
def test_an_unknown_option_is_named_and_the_nearest_suggested(
    llm: LLM, given: str, meant: str
) -> None:
    options: dict[str, Any] = {given: 1}
    for call, what in ((llm.generate, "generate"), (llm.chat, "chat")):
        with pytest.raises(ArgumentError) as caught:
            call("a", **options)
        text = str(caught.value)
        assert text.startswith(f"{what} has no option {given!r}; did you mean {meant}?")
        assert len(text) < 120


def test_an_unknown_option_without_a_near_one(llm: LLM) -> None:
    options: dict[str, Any] = {"zzz": 1}
    with pytest.raises(ArgumentError, match=r"'zzz'; it has max_tokens, stop, .* and \d+ more"):
        llm.generate("a", **options)


def test_unknown_options_of_a_model(path: Path) -> None:
    for given, meant in (("num_ctx", "n_ctx"), ("n_gpu_layer", "n_gpu_layers"), ("ngl", "n_gpu")):
        options: dict[str, Any] = {given: 1}
        with pytest.raises(ArgumentError, match=f"no option '{given}'; did you mean {meant}"):
            LLM(path, **options)
    with pytest.raises(ArgumentError, match="no option 'ray'; it is written machines=\"ray\""):
        LLM(path, ray="auto")  # type: ignore[call-arg]
    with pytest.raises(WeftError, match="no option 'zzz'"):
        LLM(path, zzz=1)  # type: ignore[call-arg]


def test_tables_have_every_option() -> None:
    assert set(PLAN_OPTIONS) == set(PlanArguments.__annotations__)
    assert set(GENERATE_OPTIONS) == set(GenerateOptions.__annotations__)
    assert {"self", "path", *LLM_OPTIONS} == set(inspect.signature(LLM.__init__).parameters)


@pytest.mark.parametrize("call", ["generate", "chat", "__init__"])
def test_help_shows_every_option_with_type_and_default(call: str) -> None:
    function = getattr(LLM, call)
    types = LLMPlanArguments if call == "__init__" else GenerateOptions
    parameters = inspect.signature(function).parameters
    text = pydoc.render_doc(LLM, renderer=pydoc.plaintext)
    for name in types.__annotations__:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        table = PLAN_OPTIONS if call == "__init__" else GENERATE_OPTIONS
        assert parameters[name].default == table[name].default
        line = f"{name}: {parameters[name].annotation} = {parameters[name].default!r}"
        assert line in (function.__doc__ or "")
        assert line in text
    assert "options" not in parameters


# **** opening and closing ****


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    for error in (FileNotFoundError, FormatError, weft.MissingFileError):
        with pytest.raises(error, match=r"no such file: .*none\.gguf"):
            LLM(tmp_path / "none.gguf")


def test_with_closes(path: Path) -> None:
    with LLM(path, devices=["reference"]) as model:
        text = model.generate("abc", **FIXED)
        assert text
    assert model.stats.n_generated == 12
    for use in (
        lambda: model.generate("abc"),
        lambda: model.embed("a"),
        lambda: model.tokenize("a"),
    ):
        with pytest.raises(ContextError, match="this LLM is closed; open the model again"):
            use()
    model.close()


def test_closing_ends_a_stream(path: Path) -> None:
    model = LLM(path, devices=["reference"])
    pieces = model.generate("abc", stream=True, **FIXED)
    next(pieces)
    model.close()
    with pytest.raises(ContextError, match="closed before its text ended"):
        list(pieces)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
def test_closing_lets_go_of_threads_and_file(tmp_path: Path) -> None:
    path = write_model(tmp_path / "own.gguf")

    def held() -> tuple[int, bool]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/task")), str(path) in maps

    gc.collect()
    before = held()
    model = LLM(path, n_threads=3)
    model.generate("abc", **FIXED)
    assert held()[0] > before[0] and held()[1]
    model.close()
    threads, mapped = held()
    assert threads == before[0] and not mapped


def test_stop_strings_that_are_none(llm: LLM) -> None:
    wrong: Any
    for wrong in (5, [5], ["a", b"b"]):
        with pytest.raises(ArgumentError, match="it must be a text or a list of texts"):
            llm.generate("a", stop=wrong)
    nothing: Any = None
    assert llm.generate("a", stop=nothing, max_tokens=1, temperature=0) == llm.generate(
        "a", max_tokens=1, temperature=0
    )


# **** calls of other libraries ****


@pytest.mark.parametrize("kind", [weft.LLM, weft.AsyncLLM])
def test_the_path_has_one_name(kind: Any, path: Path) -> None:
    for name in ("model", "model_path"):
        with pytest.raises(ArgumentError, match=f"needs path, its first argument; '{name}' is"):
            kind(**{name: path})
    with pytest.raises(TypeError, match=r"needs path, its first argument$"):
        kind()


def test_sampling_by_place(llm: LLM) -> None:
    generate: Any = llm.generate
    with pytest.raises(ArgumentError, match=r"sampling=weft\.SamplingParams"):
        generate("a", weft.SamplingParams())
    with pytest.raises(ArgumentError, match="generate needs prompt"):
        generate(prompts="a")


def test_all_of_the_trained_length(path: Path) -> None:
    with LLM(path, n_ctx=0, n_threads=1) as llm:
        assert llm.context.n_ctx == llm.model.config.n_ctx_train
        assert llm.generate("a", max_tokens=1)


def test_a_schema_is_a_class_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    person: Any = pydantic.create_model("Person", name=(str, ...))
    assert weft.SamplingParams(json_schema=person) == weft.SamplingParams(
        json_schema=person.model_json_schema()
    )
    wrong: Any = person(name="a")
    with pytest.raises(ContextError, match="a text, a dict or a class of pydantic"):
        weft.SamplingParams(json_schema=wrong)


def test_it_is_opened_in_each_process(llm: LLM) -> None:
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="LLM cannot be pickled or copied: open the model"):
            act(llm)


def test_extras_are_quoted_for_every_shell() -> None:
    source = Path(weft.__file__).parent
    texts = {file: file.read_text("utf-8") for file in source.rglob("*.py")}
    loose = re.compile(r"""install\s+`?weft\[""")
    assert [str(file) for file, text in texts.items() if loose.search(text)] == []

"""Control vectors: against biases of the weights and layers seen by a callback, in batches with
others, and files that do not fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.adapter_files import pairs, write_adapter
from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import TOKENS, configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import metadata, weights, write_model
from tests.llm.vector_files import Directions, directions, write_vector
from weft.errors import ArgumentError, ContextError, FormatError, MissingFileError
from weft.execute.watch import WatchedTensor
from weft.frontends.gguf import open_gguf
from weft.llm import LLM, Context, Model, SamplingParams
from weft.llm.engine import Done, Engine, Request
from weft.llm.tokenizers.tokenizer import Tokenizer

PROMPT = [1, 262, 263, 264, 265, 266, 261]
N_LAYER, N_EMBD = 4, 16
F32 = {"type_k": "f32", "type_v": "f32", "activations": "f32"}


class Files:
    """A tiny llama of four layers and two vectors: one of all layers, one of some."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = metadata(**{"llama.block_count": N_LAYER})
        self.tensors = weights(self.meta)
        self.base = write_model(folder / "base.gguf", self.meta, self.tensors)
        self.calm = directions(1, range(1, N_LAYER), N_EMBD)
        self.bold = directions(2, range(2, 3), N_EMBD)
        self.both = [
            write_vector(folder / "calm.gguf", self.calm),
            write_vector(folder / "bold.gguf", self.bold),
        ]

    def steered(self, name: str, *added: tuple[Directions, float]) -> Path:
        """The model with the directions as biases of its layers' last matrices."""
        biases = {f"blk.{il}.ffn_down.bias": np.zeros(N_EMBD, np.float32) for il in range(N_LAYER)}
        for vectors, scale in added:
            for il, direction in vectors.items():
                biases[f"blk.{il}.ffn_down.bias"] += np.float32(scale) * direction
        return write_model(self.folder / name, self.meta, self.tensors | biases)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("vectors"))


def logits(model: Model, device: str, chosen: object = None) -> NDArray[np.float32]:
    """The logits of a prompt, and of two tokens one by one behind it."""
    context = Context(model, 32, devices=[device], **F32)  # type: ignore[arg-type]
    if chosen is not None:
        context.use_control_vectors(chosen)  # type: ignore[arg-type]
    rows = [context.decode(PROMPT, outputs="all")]
    rows += [context.decode([token]) for token in (262, 270)]
    return np.concatenate(rows)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits_are_those_of_biases(files: Files, device: str) -> None:
    model = Model(open_gguf(files.base), control_vectors=files.both)
    base = logits(Model(open_gguf(files.base)), device)
    assert np.array_equal(logits(model, device, {}), base)
    calm, bold = files.calm, files.bold
    cases: list[tuple[object, tuple[tuple[Directions, float], ...]]] = [
        ("calm", ((calm, 1.0),)),
        ({"calm": -0.5, "bold": 2.0}, ((calm, -0.5), (bold, 2.0))),
        (None, ((calm, 1.0), (bold, 1.0))),
    ]
    for chosen, added in cases:
        expected = logits(Model(open_gguf(files.steered("biases.gguf", *added))), device)
        assert np.abs(expected - base).max() > 0.1
        np.testing.assert_allclose(logits(model, device, chosen), expected, rtol=1e-5, atol=2e-5)


def test_layers_of_a_range_alone(files: Files) -> None:
    def rows(layers: tuple[int, int] | None) -> NDArray[np.float32]:
        file = open_gguf(files.base)
        vectors = {"calm": (files.both[0], 0.5)}
        return logits(Model(file, None, vectors, layers), "reference")

    some = {il: files.calm[il] for il in (2, 3)}
    expected = logits(Model(open_gguf(files.steered("some.gguf", (some, 0.5)))), "reference")
    np.testing.assert_allclose(rows((2, 3)), expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(rows((2, 0)), rows((2, 3)))
    assert np.array_equal(rows((-1, -1)), rows(None))
    for wrong in ((3, 2), (4, 9), (1,), "ab"):
        with pytest.raises(ArgumentError, match="layers"):
            rows(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="control_vector_layers"):
        Model(open_gguf(files.base), None, None, (1, 2))


MODELS = OTHERS | {name: RELATIVES[name] for name in ("gemma3n", "gemma4", "llama4")}
LAYERS = {"graniteswitch": 1, "hrm_text": 1}
"""Layers at which models with another number of these are looked at; the others at the last."""


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_adds_them_behind_its_layers(tmp_path: Path, name: str) -> None:
    arch, changes = MODELS[name]
    if changes.get("block_count") == 1:  # the first layer has no direction
        changes = changes | {"block_count": 2}
    meta = keys_of(arch, changes)
    config = configure(tmp_path, meta)
    path = write_model(tmp_path / "m.gguf", meta, made_up(config))
    il = LAYERS.get(name, config.n_layer - 1)
    given = directions(3, range(il, il + 1), config.n_embd, 0.25)
    vector = write_vector(tmp_path / "v.gguf", given)
    model = Model(open_gguf(path), control_vectors=vector)

    kept: list[NDArray[np.float32]] = []

    def watch(tensor: WatchedTensor, ask: bool) -> bool:
        if tensor.name == f"l_out-{il}" and not ask:
            kept.append(tensor.read())
        return tensor.name == f"l_out-{il}" if ask else True

    context = Context(model, 48, devices=["reference"], **F32)  # type: ignore[arg-type]
    context.set_eval_callback(watch)
    for chosen in ({}, {"v": 2.0}):
        context.clear()
        context.use_control_vectors(chosen)
        context.decode(TOKENS, outputs="all")
    plain, steered = kept
    np.testing.assert_array_equal(steered, plain + np.float32(2.0) * given[il])  # of all streams


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_rows_of_a_mixed_batch_are_those_alone(files: Files, device: str) -> None:
    model = Model(open_gguf(files.base), control_vectors=files.both)
    choices: list[dict[str, float]] = [{}, {"calm": 1.0}, {"bold": -0.5}, {"calm": 2, "bold": 1}]
    context = Context(model, 64, n_seq_max=4, devices=[device])
    for seq, chosen in enumerate(choices):
        context.use_control_vectors(chosen, seq)
    n = len(PROMPT)
    tokens, positions = PROMPT * 4, [*range(n)] * 4
    seqs = [[seq] for seq in range(4) for _ in range(n)]
    rows = context.decode(tokens, positions, seqs=seqs, outputs="all").reshape(4, n, -1)
    for at, chosen in enumerate(choices):
        # as many columns, all with the same vectors
        alone = Context(model, 64, n_seq_max=4, devices=[device])
        for seq in range(4):
            alone.use_control_vectors(chosen, seq)
        same = alone.decode(tokens, positions, seqs=seqs, outputs="all").reshape(4, n, -1)
        assert np.array_equal(rows[at], same[at])


def test_texts_choose_their_vectors(files: Files, tmp_path: Path) -> None:
    def text(llm: LLM, **options: object) -> str:
        return llm.generate(
            PROMPT,
            max_tokens=12,
            temperature=0,
            ignore_eos=True,
            special=True,
            **options,  # type: ignore[arg-type]
        )

    with LLM(files.base) as base, LLM(files.steered("calm2.gguf", (files.calm, 2.0))) as changed:
        plain, calm = text(base), text(changed)
        with pytest.raises(ContextError, match="no control vectors; open it with control_vectors"):
            text(base, control_vectors="calm")
    assert plain != calm
    adapter = write_adapter(tmp_path / "a.gguf", pairs(1, 4, {"blk.0.ffn_up.weight": (24, 16)}))
    vectors = [(files.both[0], 2.0), (files.both[1], 0.0)]
    with LLM(files.base, adapters=[(adapter, 0.0)], control_vectors=vectors,
             n_seq_max=2) as llm:  # fmt: skip
        assert text(llm) == calm
        # the second text must not continue the cells of the first
        assert text(llm, control_vectors={}) == plain
        assert llm.stats.n_cached == 0
        assert text(llm, control_vectors={"calm": 2.0}) == calm
        assert llm.stats.n_cached == len(PROMPT) - 1
        changed_too = text(llm, adapters={"a": 2.0}, control_vectors={"calm": 2.0})
        assert llm.stats.n_cached == 0 and changed_too != calm
        with pytest.raises(ContextError, match="no control vector 'nope'; loaded are calm, bold"):
            text(llm, control_vectors="nope")


def test_an_engine_writes_texts_with_different_vectors(files: Files) -> None:
    file = open_gguf(files.base)
    model = Model(file, control_vectors={"a": files.both[0], "b": (files.both[1], 4.0)})
    choices: list[object] = [{}, "a", {"b": 8.0}, ["a", "b"], None]

    def engine(n_seq: int) -> Engine:
        context = Context(
            model, 120, n_seq_max=n_seq, n_ubatch=32, n_outputs=n_seq, devices=["reference"]
        )
        return Engine(context, Tokenizer.from_gguf(file))

    def text(engine: Engine, chosen: object) -> str:
        request = Request(
            tuple(PROMPT), max_tokens=8, sampling=SamplingParams(temperature=0), ignore_eos=True,
            special=True, control_vectors=chosen,  # type: ignore[arg-type]
        )  # fmt: skip
        return "".join(e.text for e in engine.generate(request) if not isinstance(e, Done))

    one = engine(1)
    alone = [text(one, chosen) for chosen in choices]
    one.close()
    assert len(set(alone)) > 2
    several = engine(5)
    with ThreadPoolExecutor(len(choices)) as threads:
        assert list(threads.map(lambda chosen: text(several, chosen), choices)) == alone
    several.close()


def test_states_are_for_the_same_vectors(files: Files) -> None:
    model = Model(open_gguf(files.base), control_vectors=files.both)
    first, second = (Context(model, 32, devices=["cpu"]) for _ in range(2))
    first.use_control_vectors("calm")
    first.decode(PROMPT)
    state = first.save_state(0)
    with pytest.raises(FormatError, match="its control vectors is"):
        second.load_state(state, 0)
    second.use_control_vectors("calm")
    second.load_state(state, 0)
    assert np.array_equal(first.decode([262]), second.decode([262]))
    with pytest.raises(ContextError, match="computed with other control vectors"):
        second.use_control_vectors("bold")
    with pytest.raises(FormatError, match="its control vectors is"):
        Context(Model(open_gguf(files.base), None, files.both, (2, 3)), 32).load_state(state, 0)


def test_the_plan_counts_them(files: Files) -> None:
    plain = Context(Model(open_gguf(files.base)), 32, repack=False).memory.weights
    model = Model(open_gguf(files.base), control_vectors=files.both)
    stacked = 2 * (N_LAYER - 1) * N_EMBD * 4
    assert Context(model, 32, repack=False).memory.weights == plain + stacked


GOOD = np.ones(N_EMBD, np.float32)


@pytest.mark.parametrize(
    ("tensors", "meta", "says"),
    [
        ({1: np.ones(15)}, {}, r"sizes \[15\].*give \[16\].*made for llama"),
        ({1: np.ones((2, 16))}, {}, r"sizes \[2, 16\]"),
        ({4: GOOD}, {}, "steers layer 4, the model has the layers 1 to 3"),
        ({0: GOOD}, {}, "steers layer 0"),
        ({"direction.x": GOOD}, {}, "direction.x is no direction.N"),
        ({"direction.1_0": GOOD}, {}, "is no direction.N"),
        ({"output_norm.weight": GOOD}, {}, "is no direction.N"),
        ({1: GOOD * np.nan}, {}, "not numbers"),
        ({}, {}, "no directions"),
        ({1: GOOD}, {"general.architecture": "llama"}, "but a file of the architecture llama"),
        ({1: GOOD}, {"general.architecture": "llama", "general.type": "adapter"}, "an adapter"),
    ],
)
def test_files_that_do_not_fit(
    files: Files, tmp_path: Path, tensors: dict[object, object], meta: dict[str, object], says: str
) -> None:
    arrays = {name: np.asarray(a, np.float32) for name, a in tensors.items()}
    path = write_vector(tmp_path / "bad.gguf", arrays, **meta)
    with pytest.raises(FormatError, match=says) as caught:
        Model(open_gguf(files.base), control_vectors=path)
    assert "bad.gguf" in str(caught.value)


def test_arguments_that_are_no_files(files: Files, tmp_path: Path) -> None:
    for wrong in (7, [], {"a": 3}, [(files.both[0], "x")], [(files.both[0], float("inf"))]):
        with pytest.raises((ArgumentError, ContextError), match=r"control.vector"):
            Model(open_gguf(files.base), control_vectors=wrong)  # type: ignore[arg-type]
    with pytest.raises(ContextError, match="two control vectors are called calm"):
        Model(open_gguf(files.base), control_vectors=[files.both[0], files.both[0]])
    with pytest.raises(MissingFileError):
        Model(open_gguf(files.base), control_vectors="missing.gguf")
    whole = files.both[0].read_bytes()
    for n in range(4, len(whole), 97):
        (tmp_path / "cut.gguf").write_bytes(whole[:n])
        with pytest.raises(FormatError, match="cut"):
            Model(open_gguf(files.base), control_vectors=tmp_path / "cut.gguf")
    # as an adapter it is none
    with pytest.raises(FormatError, match="is a control vector"):
        Model(open_gguf(files.base), files.both[0])

"""The golden models: runs every check of a folder and judges it as its FORMAT.md says.

Three kinds of folder, told apart by what is in them: a trained model in several types
(`variants.json`), one model per architecture (a manifest of scenarios), one model per tensor type
(a manifest of quantized files). A folder of such folders runs them all.

Exact modes (f32 weights, or `deq`: dequantized weights) want float32 activations: the reference
backend has no others, the cpu backend is asked for them. Modes called `native` want the cpu's own
quantized kernels and are judged by what quantized activations may change.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.vectors.result import Options, Result
from weft.backends import make_backend
from weft.backends.base import Backend
from weft.errors import ContextError, UnsupportedOpError, WeftError
from weft.frontends.gguf import open_gguf
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.models import ARCHITECTURES
from weft.llm.tokenizers.tokenizer import MODELS, Tokenizer

__all__ = ["run"]

Json = Mapping[str, Any]
Array = NDArray[Any]
Activations = Literal["f32", "native"]

LOGITS_BOUND = 1e-4  # FORMAT.md, numeric modes
GREEDY_BOUND = 1e-3  # FORMAT.md 3: stop at the first step whose stored margin is below it
# The NLL is a logit less a logsumexp; each moves by at most what the logits move by.
NLL_BOUND = 2 * LOGITS_BOUND
NATIVE_NLL_BOUND = 0.003  # relative, of the mean
# FORMAT.md gives the distance of one implementation's quantized activations to exact ones, and says
# to use it as an order of magnitude. Other block sizes and roundings than its own move it a little.
NATIVE_RMS_FACTOR = 1.5
NOT_IN_THIS_VERSION = "not in this version"


def run(folder: Path, options: Options) -> Iterator[Result]:
    """Results of every check of `folder` and the folders in it."""
    folder = Path(folder)
    yield from _run_folder(folder, _Runner(options))
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _run_folder(path, _Runner(options))


def _run_folder(folder: Path, runner: _Runner) -> Iterator[Result]:
    if (folder / "variants.json").exists():
        yield from _trained(folder, runner)
        return
    if not (folder / "manifest.json").exists():
        return
    for name, entry in _json(folder / "manifest.json").items():
        if not isinstance(entry, dict):
            continue
        if "scenarios" in entry or "embeddings" in entry:
            yield from _architecture(folder, name, entry, runner)
        elif "logits_deq" in entry:
            yield from _quantized(folder, name, entry, runner)


# -- the three kinds of folder ---------------------------------------------------------------------


def _trained(folder: Path, runner: _Runner) -> Iterator[Result]:
    manifest = _json(folder / "manifest.json")
    prompts = {p["id"]: p for p in manifest["prompts"]}
    story = _json(folder / "story_tokens.json")
    story = story["tokens"] if isinstance(story, dict) else story
    variants = _json(folder / "variants.json")
    base = folder.name
    for variant, entry in variants.items():
        path = folder / entry["gguf"]
        if entry is next(iter(variants.values())):
            yield from _trained_tokens(folder, path, prompts, story, runner)
        for mode, data in entry["modes"].items():
            # float32 weights have no quantized kernels: their only mode is an exact one
            exact = mode == "deq" or len(entry["modes"]) == 1
            name = f"{base}/{variant}/{mode}"
            if exact:
                for greedy in data["greedy"]:
                    prompt = prompts[greedy["prompt"]]["tokens"]
                    yield from runner.check(
                        f"{name}/greedy/{greedy['prompt']}",
                        lambda path=path, p=prompt, g=greedy: runner.greedy(path, p, g),
                    )
                for id_, file in data["logits"].items():
                    prompt = prompts[int(id_)]["tokens"]
                    yield from runner.check(
                        f"{name}/logits/{id_}",
                        lambda path=path, p=prompt, f=file: runner.prompt_logits(
                            path, p, _load(folder, f)
                        ),
                    )
            yield from runner.check(
                f"{name}/nll",
                lambda path=path, d=data, x=exact: runner.nll(
                    path, story, d["nll"], _load(folder, d["nll"]["per_token"]), exact=x
                ),
            )
    if (folder / "kv_scenarios.json").exists():
        exact_path = folder / variants["F32"]["gguf"]
        for scenario in _json(folder / "kv_scenarios.json"):
            yield from runner.check(
                f"{base}/kv/{scenario['name']}",
                lambda s=scenario: runner.scenario(folder, exact_path, s),
            )


def _trained_tokens(
    folder: Path, path: Path, prompts: Json, story: Sequence[int], runner: _Runner
) -> Iterator[Result]:
    for id_, prompt in prompts.items():
        yield from runner.check(
            f"{folder.name}/tokens/{id_}",
            lambda p=prompt: _same_ids(runner.tokenizer(path).encode(p["text"]), p["tokens"]),
        )
    if (folder / "story.txt").exists():
        text = (folder / "story.txt").read_bytes().decode()
        yield from runner.check(
            f"{folder.name}/tokens/story",
            lambda: _same_ids(runner.tokenizer(path).encode(text, add_special=False), story),
        )


def _architecture(folder: Path, name: str, entry: Json, runner: _Runner) -> Iterator[Result]:
    path = folder / entry["gguf"]
    for scenario in entry.get("scenarios", ()):
        yield from runner.check(
            f"{folder.name}/{name}/{scenario['name']}",
            lambda s=scenario: runner.scenario(folder, path, s),
        )
    if "embeddings" in entry:
        yield from runner.check(
            f"{folder.name}/{name}/embeddings", lambda: runner.embeddings(folder, path, entry)
        )
    for i, case in enumerate(entry.get("tokenizer_cases", ())):
        yield from runner.check(
            f"{folder.name}/{name}/tokens/{i}",
            lambda c=case: runner.tokenizer_case(path, c),
        )


def _quantized(folder: Path, name: str, entry: Json, runner: _Runner) -> Iterator[Result]:
    path = folder / entry["gguf"]
    yield from runner.check(
        f"{folder.name}/{name}/deq",
        lambda: runner.steps(path, entry, _load(folder, entry["logits_deq"])),
    )
    yield from runner.check(
        f"{folder.name}/{name}/native",
        lambda: runner.native_steps(
            path, entry, _load(folder, entry["logits_deq"]), _load(folder, entry["logits_native"])
        ),
    )


# -- running and judging ---------------------------------------------------------------------------


class _Skip(Exception):
    """A check that cannot be made; the text is the reason."""


class _Runner:
    """Contexts on the chosen backend, and one method per kind of check: it returns what is wrong,
    or an empty string."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._model: tuple[Path, Model] | None = None
        self._tokenizer: tuple[Path, Tokenizer] | None = None

    def check(self, name: str, body: Callable[[], str]) -> Iterator[Result]:
        """One result, unless the filter leaves the check out."""
        if not self.options.wants(name):
            return
        try:
            wrong = body()
        except _Skip as skip:
            yield Result(name, "skipped", str(skip))
        except UnsupportedOpError as error:
            yield Result(name, "skipped", f"no kernel: {error}")
        except WeftError as error:
            unsupported = isinstance(error, ContextError) and NOT_IN_THIS_VERSION in str(error)
            status: Literal["skipped", "failed"] = "skipped" if unsupported else "failed"
            yield Result(name, status, f"{type(error).__name__}: {error}")
        else:
            yield Result(name, "failed" if wrong else "passed", wrong)

    def skip_unknown(self, arch: str) -> str:
        """Skips a check of an architecture that is not there yet."""
        raise _Skip(f"architecture {arch} is not known")

    def model(self, path: Path) -> Model:
        if self._model is None or self._model[0] != path:
            arch = open_gguf(path).architecture
            if arch not in ARCHITECTURES:
                self.skip_unknown(arch)
            self._model = path, Model.open(path)
        return self._model[1]

    def tokenizer(self, path: Path) -> Tokenizer:
        if self._tokenizer is None or self._tokenizer[0] != path:
            kind = open_gguf(path).get_str("tokenizer.ggml.model", "")
            if kind not in MODELS:
                raise _Skip(f"tokenizer model {kind} is not known")
            self._tokenizer = path, Tokenizer.from_gguf(open_gguf(path))
        return self._tokenizer[1]

    def context(
        self,
        path: Path,
        activations: Activations = "f32",
        *,
        n_ctx: int = 512,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
    ) -> Context:
        """A context with float32 keys and values."""
        devices = self._devices(path, activations)
        return Context(
            self.model(path),
            n_ctx,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            type_k="f32",
            type_v="f32",
            devices=devices,
            place=self._places(path, devices),
        )

    def _places(self, path: Path, devices: Sequence[Backend]) -> dict[str, str]:
        """Random devices for the weights, tensor by tensor; none unless a number was given."""
        if self.options.places is None:
            return {}
        rng = np.random.default_rng([self.options.places, zlib.crc32(path.name.encode())])
        names = [name for name in self.model(path).weights if name != "token_embd.weight"]
        return {name: devices[int(rng.integers(len(devices)))].name for name in names}

    def _devices(self, path: Path, activations: Activations) -> list[Backend]:
        """The chosen backend, and the cpu behind it unless it can do everything alone."""
        chosen = {"target": self.options.target} if self.options.target else {}
        if self.options.backend == "cpu":
            return [make_backend("cpu", activations=activations, **chosen)]
        if self.options.backend.startswith("cuda"):
            cpu = make_backend("cpu", activations=activations, **chosen)
            return [self._cuda(path, activations), cpu]
        if activations == "native":
            raise _Skip(f"backend {self.options.backend} has no quantized activations")
        exact = {"activations": "f32"}  # the others have no such option
        backends = [
            make_backend(name, **(exact if name.startswith(("webgpu", "opencl")) else {}))
            for name in self.options.backend.split(",")
        ]
        if backends[-1].kind == "CPU":
            return backends
        return [*backends, make_backend("cpu", activations=activations, **chosen)]

    def _cuda(self, path: Path, activations: Activations) -> Backend:
        """A CUDA device. Its own kernels round activations as the cpu's quantized ones do, except
        where weights are float32."""
        exact = {t.dtype.name for t in self.model(path).weights.values()} <= {"f32"}
        return make_backend(self.options.backend, own=exact or activations == "native")

    def greedy(self, path: Path, prompt: Sequence[int], want: Json) -> str:
        context = self.context(path)
        logits = context.decode(prompt)[0]
        for step, (token, margin) in enumerate(zip(want["tokens"], want["margins"], strict=True)):
            if margin < GREEDY_BOUND:
                return ""
            got = int(logits.argmax())
            if got != token:
                return f"token {step} is {got}, not {token} (margin {margin})"
            logits = context.decode([got])[0]
        return ""

    def prompt_logits(self, path: Path, prompt: Sequence[int], want: Array) -> str:
        return _close(self.context(path).decode(prompt, outputs="all"), want, LOGITS_BOUND)

    def nll(
        self, path: Path, tokens: Sequence[int], want: Json, per_token: Array, *, exact: bool
    ) -> str:
        context = self.context(path, "f32" if exact else "native")
        got = []
        for start in range(0, len(tokens), want["window"]):
            chunk = list(tokens[start : start + want["window"]])
            context.cache.clear()
            logits = context.decode([1, *chunk[:-1]], outputs="all")
            got.append(_nll(logits, chunk))
        nll = np.concatenate(got)
        if exact:
            return _close(nll, per_token, NLL_BOUND)
        off = abs(nll.mean() / want["mean"] - 1)
        if not off <= NATIVE_NLL_BOUND:
            return f"mean NLL {nll.mean():.6f}, stored {want['mean']:.6f}: {off:.3%} off"
        return ""

    def steps(self, path: Path, entry: Json, want: Array) -> str:
        return _close(self._step_logits(path, entry, "f32"), want, LOGITS_BOUND)

    def native_steps(self, path: Path, entry: Json, deq: Array, native: Array) -> str:
        got = self._step_logits(path, entry, "native")
        rms = _rms(got - deq)
        bound = NATIVE_RMS_FACTOR * entry["rms_native_vs_deq"]
        if not rms <= bound:
            return f"rms to exact logits {rms:.4f}, bound {bound:.4f}"
        # every token but the first is predicted by the row before it
        tokens = [*entry["prompt"], *entry["steps"]][1:]
        mine, theirs, true = (float(_nll(x[:-1], tokens).mean()) for x in (got, native, deq))
        # other devices round fewer or other activations than the cpu: they are near one of the two
        wanted = (theirs,) if self.options.backend == "cpu" else (theirs, true)
        off = min(abs(mine / want - 1) for want in wanted)
        if not off <= NATIVE_NLL_BOUND:
            return f"mean NLL {mine:.6f}, stored {theirs:.6f}: {off:.3%} off"
        return ""

    def _step_logits(self, path: Path, entry: Json, activations: Activations) -> Array:
        context = self.context(path, activations)
        rows = [context.decode(entry["prompt"], outputs="all")]
        rows += [context.decode([token]) for token in entry["steps"]]
        return np.concatenate(rows)

    def tokenizer_case(self, path: Path, case: Json) -> str:
        tokenizer = self.tokenizer(path)
        return _same_ids(tokenizer.encode(case["text"]), case["ids"]) or _same_ids(
            tokenizer.encode(case["text"], add_special=False), case["ids_no_special"]
        )

    def embeddings(self, folder: Path, path: Path, entry: Json) -> str:
        """Tokens and embeddings of each text, with every pooling."""
        context = self.context(path)
        texts = [s["tokens"] for s in entry["sequences"]]
        for s in entry["sequences"]:
            if s["text"] is not None:
                wrong = _same_ids(self.tokenizer(path).encode(s["text"]), s["tokens"])
                if wrong:
                    return f"{s['text']!r}: {wrong}"
        for pooling, file in entry["embeddings"].items():
            got = np.concatenate([np.atleast_2d(context.embed(t, pooling)) for t in texts])
            wrong = _close(got, _load(folder, file), LOGITS_BOUND)
            if wrong:
                return f"{pooling}: {wrong}"
        return ""

    def scenario(self, folder: Path, path: Path, scenario: Json) -> str:
        """Runs the operations of a scenario and compares every row of logits."""
        ctx = scenario["ctx"]
        make = {key: ctx[key] for key in ("n_ctx", "n_ubatch", "n_seq_max") if key in ctx}
        context = self.context(path, **make)
        want = _load(folder, scenario["logits"])
        bound = max(LOGITS_BOUND, 5 * scenario.get("float64_max_abs_diff", 0.0))
        states: dict[Any, bytes] = {}
        for number, op in enumerate(scenario["ops"]):
            wrong = ""
            if op["op"] == "decode":
                got = context.decode(op["tok"], op["pos"], seqs=op["seq"], outputs=op["out"])
                first, last = op["rows"]
                wrong = _close(got, want[first:last], bound)
            elif op["op"] == "state_save":
                states[op["slot"]] = context.save_state()
            elif op["op"] == "state_load":
                if op.get("fresh_context"):
                    context = self.context(path, **make)
                context.load_state(states[op["slot"]])
            elif op["op"] == "seq_state_save":
                states[op["slot"]] = context.save_state(op["seq"])
            elif op["op"] == "seq_state_load":
                context.load_state(states[op["slot"]], op["seq"])
            else:
                wrong = _apply(context, op)
            if wrong:
                return f"op {number} ({op['op']}): {wrong}"
        return ""


def _apply(context: Context, op: Json) -> str:
    cache, kind = context.cache, op["op"]
    if kind == "seq_rm":
        cache.seq_rm(op["seq"], op["p0"], op["p1"])
    elif kind == "seq_cp":
        cache.seq_cp(op["src"], op["dst"], op["p0"], op["p1"])
    elif kind == "seq_keep":
        cache.seq_keep(op["seq"])
    elif kind == "seq_add":
        cache.seq_add(op["seq"], op["p0"], op["p1"], op["delta"])
    elif kind == "seq_div":
        cache.seq_div(op["seq"], op["p0"], op["p1"], op["d"])
    elif kind == "clear":
        cache.clear()
    elif kind == "pos":
        got = cache.pos_min(op["seq"]), cache.pos_max(op["seq"])
        if got != (op["min"], op["max"]):
            return f"positions {got}, not {(op['min'], op['max'])}"
    else:
        raise _Skip(f"{kind} is {NOT_IN_THIS_VERSION}")
    return ""


def _close(got: Array, want: Array, bound: float) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    worst = float(np.abs(got - want).max(initial=0.0))
    return "" if worst <= bound else f"max abs diff {worst:.3e}, bound {bound:.3e}"


def _nll(logits: Array, tokens: Sequence[int]) -> Array:
    """Negative log-likelihood of each token by its row of logits, in float64."""
    x = logits.astype(np.float64)
    top = x.max(axis=1)
    total = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
    return np.asarray(total - x[np.arange(len(tokens)), list(tokens)])


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def _same_ids(got: Sequence[int], want: Sequence[int]) -> str:
    return "" if list(got) == list(want) else f"ids {list(got)}, not {list(want)}"


def _load(folder: Path, file: str) -> Array:
    array: Array = np.load(folder / file)
    return array


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))

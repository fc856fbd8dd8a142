"""The two engines that `compare.py` measures, each in a process of its own.

    python benchmarks/engines.py weft|llama.cpp

answers requests, one JSON object a line, on standard input: load, peaks, pp, tg, logits, exact,
quit. An engine that is not asked for anything sleeps. llama.cpp is reached through the low-level
API of `llama-cpp-python`; this file needs no part of weft for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any, Protocol, TextIO

import numpy as np

N_CHECK = 32  # tokens of the prompt whose logits are compared


class Engine(Protocol):
    """An engine that is measured. It opens a context for each (threads, flash) of a request."""

    n_vocab: int

    def about(self) -> dict[str, str]: ...

    def load(self, path: str, n_ctx: int) -> None: ...

    def use(self, threads: int, flash: bool) -> None: ...

    def clear(self) -> None: ...

    def decode(self, tokens: Sequence[int], outputs: str = "last") -> np.ndarray | None: ...

    def notes(self) -> list[str]: ...


class Weft:
    """weft, with the defaults that a user gets."""

    def __init__(self) -> None:
        import weft
        from weft import _native
        from weft.flags import FLAGS

        self._about = {
            "version": weft.__version__,
            "kernels": FLAGS.target or _native.best_target(),
        }

    def about(self) -> dict[str, str]:
        return self._about

    def load(self, path: str, n_ctx: int) -> None:
        from weft.llm import Model

        self.model, self.n_ctx = Model.open(path), n_ctx
        self.n_vocab = self.model.config.n_vocab
        self.contexts: dict[tuple[int, bool], Any] = {}

    def use(self, threads: int, flash: bool) -> None:
        from weft.llm import Context

        if (threads, flash) not in self.contexts:
            self.contexts[threads, flash] = Context(
                self.model, self.n_ctx, n_outputs=min(N_CHECK, self.n_ctx), n_threads=threads,
                flash=flash,
            )  # fmt: skip
        self.context = self.contexts[threads, flash]

    def clear(self) -> None:
        self.context.cache.clear()

    def decode(self, tokens: Sequence[int], outputs: str = "last") -> np.ndarray | None:
        return np.asarray(self.context.decode(tokens, outputs=outputs))

    def notes(self) -> list[str]:
        return []

    def exact(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits with activations in float32, which are only as wrong as the weights."""
        from weft.llm import Context

        n = len(tokens)
        context = Context(self.model, n, n_outputs=n, activations="f32")
        return context.decode(tokens, outputs="all")

    def peaks(self, threads: int) -> dict[str, float | None]:
        """Measures this machine: bytes read per second, and operations per second by kind."""
        try:
            from weft.backends.cpu import measure_peaks
        except ImportError:
            return {}
        peaks_of_machine = measure_peaks(threads)
        return {kind: getattr(peaks_of_machine, kind) for kind in ("read", "int8", "f32", "bf16")}


class LlamaCpp:
    """llama.cpp, with its defaults but for what is measured: threads, n_ubatch 512, flash."""

    def __init__(self) -> None:
        import llama_cpp
        from llama_cpp import llama_cpp as api

        self.api = api
        self.log: list[str] = []
        # the library keeps using the callback, so it must not be freed
        self._callback = api.llama_log_callback(
            lambda level, text, data: self.log.append((text or b"").decode(errors="replace"))
        )
        api.llama_log_set(self._callback, None)
        api.llama_backend_init()
        system = api.llama_print_system_info().decode()
        self._about = {"version": llama_cpp.__version__, "kernels": system.replace(" = 1", "")}

    def about(self) -> dict[str, str]:
        return self._about

    def load(self, path: str, n_ctx: int) -> None:
        params = self.api.llama_model_default_params()
        self.model = self.api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise RuntimeError(self._why() or "llama.cpp cannot load it")
        self.n_ctx = n_ctx
        self.n_vocab = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))
        self.contexts: dict[bool, Any] = {}

    def use(self, threads: int, flash: bool) -> None:
        if flash not in self.contexts:
            params = self.api.llama_context_default_params()
            params.n_ctx = self.n_ctx
            params.n_batch = params.n_ubatch = min(512, self.n_ctx)
            params.n_threads = params.n_threads_batch = threads
            params.flash_attn_type = int(flash)
            context = self.api.llama_init_from_model(self.model, params)
            if not context:
                raise RuntimeError(self._why() or "llama.cpp cannot make a context")
            self.contexts[flash] = context
        self.context = self.contexts[flash]
        self.api.llama_set_n_threads(self.context, threads, threads)

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def decode(self, tokens: Sequence[int], outputs: str = "last") -> np.ndarray | None:
        """Decodes in calls of at most n_batch tokens, as llama-bench does."""
        if outputs == "all":
            return self._decode_all(tokens)
        for start in range(0, len(tokens), 512):
            part = tokens[start : start + 512]
            ids = (self.api.llama_token * len(part))(*part)
            self._run(self.api.llama_batch_get_one(ids, len(part)))
        return None

    def _decode_all(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits of every token of one call."""
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        self._run(batch)
        logits = self.api.llama_get_logits(self.context)
        rows = np.ctypeslib.as_array(logits, (len(tokens), self.n_vocab)).copy()
        self.api.llama_batch_free(batch)
        return rows

    def _run(self, batch: Any) -> None:
        status = self.api.llama_decode(self.context, batch)
        self.api.llama_synchronize(self.context)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def notes(self) -> list[str]:
        """Says where the weights are; CPU_REPACK is memory of rearranged weights."""
        lines = "".join(self.log).splitlines()
        return [line.split(":", 1)[-1].strip() for line in lines if "model buffer size" in line]

    def _why(self) -> str:
        lines = "".join(self.log).splitlines()
        return next((line for line in lines if "error" in line.lower()), "")


ENGINES = {"weft": Weft, "llama.cpp": LlamaCpp}


class Served:
    """Answers the requests to one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def load(self, path: str, n_ctx: int, threads: int, flash: bool) -> dict[str, Any]:
        """Loads a model and computes one token, which touches all weights."""
        start = perf_counter()
        self.engine.load(path, n_ctx)
        self.engine.use(threads, flash)
        self.engine.clear()
        self.engine.decode([1])
        seconds = perf_counter() - start
        return {"seconds": seconds, **_memory(), "notes": self.engine.notes()}

    def peaks(self, threads: int) -> dict[str, Any]:
        """The highest rates of this machine, which only weft measures."""
        assert isinstance(self.engine, Weft)
        return self.engine.peaks(threads)

    def pp(self, n: int, threads: int, flash: bool, processor: bool) -> dict[str, Any]:
        """Seconds of a prompt of n tokens, from an empty cache to the last token's logits; with
        `processor` those that processors worked."""
        return self._timed(n, threads, flash, processor, at_once=True)

    def tg(self, n: int, threads: int, flash: bool, processor: bool) -> dict[str, Any]:
        """Seconds of n tokens one by one, from an empty cache."""
        return self._timed(n, threads, flash, processor, at_once=False)

    def exact(self, path: str) -> dict[str, Any]:
        """The same as `logits` with activations in float32, which only weft offers."""
        assert isinstance(self.engine, Weft)
        np.save(path, self.engine.exact(self._tokens(N_CHECK)))
        return {}

    def logits(self, path: str, threads: int, flash: bool) -> dict[str, Any]:
        """Writes the logits [32, n_vocab] of a prompt to a .npy file."""
        self.engine.use(threads, flash)
        self.engine.clear()
        rows = self.engine.decode(self._tokens(N_CHECK), "all")
        assert rows is not None
        np.save(path, rows)
        return {}

    def _timed(
        self, n: int, threads: int, flash: bool, processor: bool, at_once: bool
    ) -> dict[str, Any]:
        self.engine.use(threads, flash)
        self.engine.clear()
        tokens = self._tokens(n)
        clock = process_time if processor else perf_counter
        start = clock()
        if at_once:
            self.engine.decode(tokens)
        else:
            for token in tokens:
                self.engine.decode([token])
        return {"seconds": clock() - start}

    def _tokens(self, n: int) -> list[int]:
        rng = np.random.default_rng(1)
        return [int(t) for t in rng.integers(3, self.engine.n_vocab, n)]


def _memory() -> dict[str, int]:
    """Bytes of this process in memory: all, and those that are not of files."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {
        key: int(fields[name].split()[0]) * 1024
        for key, name in (("resident", "VmRSS"), ("anonymous", "RssAnon"))
        if name in fields
    }


def serve(name: str, requests: TextIO, answers: TextIO) -> None:
    """Answers until there are no more requests; a failure is an answer too."""

    def answer(data: dict[str, Any]) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    try:
        served = Served(ENGINES[name]())
    except ImportError as e:
        answer({"missing": str(e)})
        return
    answer(served.engine.about())
    for line in requests:
        request = json.loads(line)
        kind = request.pop("do")
        if kind == "quit":
            return
        try:
            answer(getattr(served, kind)(**request))
        except Exception as e:  # told to the parent, which knows what was asked
            answer({"error": f"{type(e).__name__}: {e}"})


if __name__ == "__main__":
    # keeps what libraries print out of the answers
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, pipe)
    pipe.flush()
    os._exit(0)  # frees nothing: the system is faster at it

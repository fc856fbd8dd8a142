"""Time to the first token of a chat's second turn, with and without kept prefixes.

    python benchmarks/make_mamba.py mamba.gguf
    python benchmarks/prefix_reuse.py mamba.gguf --tokens 512 --rounds 5

The second turn has the first one, an answer from which the template left out a part, and a new
message, so that a recurrent state is behind the place where the new text goes on. Each round asks
both ways in turn; times are processor time, and the table has the medians of their ratios. A ratio
below 1 means that keeping prefixes is faster. `first turn` is what checkpoints cost a prompt that
is new.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import process_time

import numpy as np

from weft import LLM

ANSWER, MESSAGE = 32, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the first turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(args, Path(folder))


def measure(args: argparse.Namespace, folder: Path) -> None:
    def opened(**options: object) -> LLM:
        n_ctx = 2 * (args.tokens + ANSWER + MESSAGE + 64)
        return LLM(args.model, n_ctx=n_ctx, n_threads=args.threads, **options)  # type: ignore[arg-type]

    with_, without = opened(), opened(cache_ram=0)
    end = min(with_.tokenizer.vocab.eog)
    ratios: dict[str, list[float]] = {}
    random = np.random.default_rng(0)

    def words(n: int) -> list[int]:
        return random.integers(300, 2000, n).tolist()

    def seconds(llm: LLM, prompt: list[int]) -> tuple[float, str]:
        start = process_time()
        text = llm.generate(prompt, max_tokens=2, temperature=0, ignore_eos=True)
        return process_time() - start, text

    def compare(what: str, llm: LLM, prompt: list[int]) -> None:
        (a, text), (b, same) = seconds(llm, prompt), seconds(without, prompt)
        assert text == same
        ratios.setdefault(what, []).append(a / b)
        kept = f"{llm.stats.n_cached} of {llm.stats.n_prompt} kept"
        print(f"{what:<34} {a * 1e3:9.1f} ms {b * 1e3:9.1f} ms   {kept}")

    for llm in (with_, without):
        llm.generate(words(args.tokens), max_tokens=8, ignore_eos=True)
    for round_ in range(args.rounds):
        first = [*words(args.tokens - 4), end, *words(3)]
        second = [*first, *words(ANSWER), end, *words(MESSAGE), end, *words(3)]
        compare("first turn", with_, first)
        compare("second turn", with_, second)
        other = [*words(args.tokens), end]
        compare("another conversation", with_, other)
        compare("second turn again, from memory", with_, [*second[:-1], 77])
        cache = folder / str(round_)
        with opened(cache_dir=cache) as llm:
            llm.generate(first, max_tokens=ANSWER, ignore_eos=True)
        with opened(cache_dir=cache) as llm:
            for one in (llm, without):
                one.generate(words(4), max_tokens=4, ignore_eos=True)
            compare("second turn, from the folder", llm, second)
    print()
    for what, of_rounds in ratios.items():
        print(f"{what:<34} {statistics.median(of_rounds):6.3f} of the time")


if __name__ == "__main__":
    main()

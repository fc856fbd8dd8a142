"""Writes down what the results of each architecture are held against:

    python tests/held.py
    python tests/held.py --page

It runs the tests that compare models with a reference, notes the architecture of every model that
they open, and writes `src/weft/frontends/held.json`, and `docs/held.md` from it. Golden files are
those of `../shared/vectors`. With `--page` it runs no tests, and writes the page
of the data that are there.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

DATA, PAGE = ROOT / "src/weft/frontends/held.json", ROOT / "docs/held.md"
VECTORS = ROOT.parent / "shared/vectors/models"

FILES = {
    "transformers": "test_hf_models test_hf_settings test_hf_encoders test_hf_older test_hf_bitnet "
    "test_hf_recurrent test_hf_diffusion test_gemma4_assistant test_beside_transformers "
    "test_encoders_beside_transformers test_t5",
    "numpy": "test_beside_numpy test_rwkv test_llama test_next_layer test_drafters "
    "test_kimi_k3 test_granite_switch",
    "scenarios": "test_llama_relatives test_other_architectures test_recurrent "
    "test_recurrent_together test_sequences",
}
"""Files of tests by what they compare with."""
BESIDE = (
    "test_logits", "test_embeddings_of_transformers", "test_scores_of_transformers",
    "test_the_papers_equations", "test_against_numpy", "test_talkie", "test_refact",
    "test_a_file_that_lacks_settings", "test_the_encoder_alone", "test_the_same_logits",
    "test_folders_and_their_files_have_the_logits", "test_eagle3_against", "test_dflash_against",
)  # fmt: skip
"""Beginnings of the names of tests that compare logits, embeddings or scores with a reference; in
the files `*_beside_transformers.py` all tests do."""
SCENARIOS = {
    "test_batches_single_tokens_and_both_attentions_agree": "batches and single tokens",
    "test_moved_positions_are_as_if_computed_there": "moved positions",
    "test_fused_projections_agree_with_separate_ones": "fused projections",
    "test_the_same_blocks_have_the_same_logits": "the blocks of another architecture",
    "test_every_tensor_of_a_file_is_used": "every tensor of a file",
    "test_sequences_of_a_batch_are_as_if_alone": "sequences of a batch",
    "test_a_fork_goes_on_by_itself": "forks",
    "test_a_removed_sequence_starts_anew": "removed sequences",
    "test_a_failed_decode_leaves_the_state": "failed calls",
    "test_saved_states": "saved states",
    "test_a_token_of_each_is_one_run": "tokens of several sequences in one run",
}
"""Tests of the last files, and what they are called in the table."""


class Recorder:
    """A plugin that notes which architectures a test that passed has opened."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.found: dict[str, set[str]] = defaultdict(set)
        self._seen: set[str] = set()

    def pytest_sessionstart(self) -> None:
        from weft.llm.model import Model

        init = Model.__init__

        def noted(model: Any, *args: Any, **options: Any) -> None:
            init(model, *args, **options)
            self._seen.add(model.config.arch)

        Model.__init__ = noted  # type: ignore[method-assign]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seen.clear()
        yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        from weft.frontends.architectures import FILES as ARCHITECTURES_BY_FILE

        if report.when != "call" or not report.passed:
            return
        function, _, case = report.nodeid.rpartition("::")[2].partition("[")
        compares = function.startswith(BESIDE) or "beside_transformers" in report.nodeid
        drafters = self._seen & {*ARCHITECTURES_BY_FILE["drafters"]}
        for arch in drafters or self._seen:  # the model that they draft for is not compared
            if self.kind != "scenarios" and compares:
                self.found[arch].add(case.removesuffix("]") or function.removeprefix("test_"))
            elif self.kind == "scenarios" and function in SCENARIOS:
                self.found[arch].add(SCENARIOS[function])


def golden() -> dict[str, set[str]]:
    """The golden scenarios that each architecture passes."""
    from tests.vectors import models
    from tests.vectors.result import Options

    manifest = json.loads((VECTORS / "archs/manifest.json").read_text("utf-8"))
    found: dict[str, set[str]] = defaultdict(set)
    for result in models.run(VECTORS, Options(filter="archs/*")):
        _, name, *rest = result.name.split("/")
        if result.status == "passed" and rest:
            found[manifest[name]["arch"]].add("/".join((name, *rest)))
    return found


def page(rows: dict[str, dict[str, list[str]]]) -> str:
    """The page with the table of all architectures, with or without data."""
    from weft.llm.models import ARCHITECTURES

    head = (
        "# What each architecture was held against\n\n"
        "Made by `python tests/held.py` of tests that passed: the scenarios of golden files of "
        "llama.cpp, the models with\n"
        "the logits or embeddings of transformers, and the models that equal their equations in "
        "NumPy, each as a number.\n"
        "The last column names what weft's own tests compare with itself, in models of random "
        "weights. `weft inspect` says all\n"
        "of this of a model.\n\n"
        "| architecture | golden | transformers | NumPy | scenarios |\n|---|---|---|---|---|\n"
    )
    lines = []
    for arch in sorted({*ARCHITECTURES, *rows}):
        row = rows.get(arch, {"scenarios": []})
        counts = (str(len(row.get(name, ())) or "") for name in ("golden", "transformers", "numpy"))
        lines.append(f"| `{arch}` | {' | '.join(counts)} | {', '.join(row['scenarios'])} |\n")
    return head + "".join(lines)


def same_blocks(rows: Collection[str]) -> dict[str, dict[str, list[str]]]:
    """Rows of the architectures that no test opens, but that are another one under their name."""
    from weft.llm.models import ARCHITECTURES, find_architecture

    found = {}
    for arch in sorted({*ARCHITECTURES} - {*rows}):
        same = [other for other in rows if find_architecture(other) is find_architecture(arch)]
        found[arch] = {"scenarios": [f"the blocks of {other}" for other in same[:1]]}
    return found


def main(arguments: Sequence[str]) -> int:
    """Writes the data, unless `--page` is given, and the page."""
    if [*arguments] == ["--page"]:
        PAGE.write_text(page(json.loads(DATA.read_text("utf-8"))), "utf-8")
        return 0
    found = {"golden": golden()}
    for kind, names in FILES.items():
        recorder = Recorder(kind)
        files = [str(ROOT / f"tests/llm/{name}.py") for name in names.split()]
        pytest.main(["-q", "-p", "no:cacheprovider", "--part", "all", *files], plugins=[recorder])
        found[kind] = recorder.found
    rows: dict[str, dict[str, list[str]]] = {}
    for arch in sorted({arch for rows in found.values() for arch in rows}):
        row = {kind: sorted(cases[arch]) for kind, cases in found.items() if arch in cases}
        rows[arch] = {**row, "scenarios": row.get("scenarios", [])}
    rows = dict(sorted({**rows, **same_blocks(rows)}.items()))
    DATA.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(page(rows), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

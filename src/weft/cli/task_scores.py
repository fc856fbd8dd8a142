"""`weft perplexity --hellaswag`, `--winogrande` and `--multiple-choice`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from weft.cli.command import usage_error
from weft.cli.console import CountProgress, LoadProgress, note, say
from weft.cli.loading import open_with
from weft.cli.text_input import read_bytes, read_text
from weft.llm import Context, Model, Tokenizer
from weft.llm.compute.embed import sequences_for
from weft.llm.planning.options import DEFAULT_N_UBATCH
from weft.llm.quality.choices import Score, TaskResult, score_blanks, score_choices
from weft.llm.quality.kl import n_outputs_for
from weft.llm.quality.tasks import (
    Blank,
    Choice,
    read_hellaswag,
    read_multiple_choice,
    read_winogrande,
    some_hellaswag,
    some_of,
)

Kind = Literal["hellaswag", "winogrande", "multiple-choice"]

_N_CTX = 2048
_N_SEQS = 32


def score_tasks(
    kind: Kind, model: Path, load: dict[str, Any], file: Path | None, n: int, *, as_json: bool
) -> None:
    """Prints the share of `n` tasks of a file (0: all) that a model answers right."""
    if n < 0:
        raise usage_error(f"--{kind}-tasks is {n}; it must be 0 (all) or more")
    choices, blanks = _read(kind, file, n)
    loaded = open_with(model, load)
    tokenizer = Tokenizer.from_gguf(loaded.file)
    most = max((len(task.answers) for task in choices), default=2)
    context = _context(loaded, load, most)
    n_tasks = len(choices) + len(blanks)
    say(f"{model.name}: {n_tasks} {kind} tasks")
    if blanks:
        results = score_blanks(context, tokenizer, blanks)
    else:
        results = score_choices(context, tokenizer, choices)
    last = _shown(results, n_tasks, _LINES[kind], quiet=as_json)
    if as_json:
        print(json.dumps(_row(kind, model, last), indent=1))
    else:
        print(f"Final result: {100 * last.accuracy:.4f} % +/- {100 * last.error:.4f}")
        print(f"Random chance: {100 * last.chance:.4f} % +/- {100 * last.chance_error:.4f}")


def _read(kind: Kind, file: Path | None, n: int) -> tuple[Sequence[Choice], Sequence[Blank]]:
    if kind == "multiple-choice":
        return some_of(read_multiple_choice(read_bytes(file)), n), ()
    text = read_text(None, file)
    if kind == "hellaswag":
        tasks = read_hellaswag(text)
        return some_hellaswag(tasks, n or len(tasks)), ()
    blanks, wrong = read_winogrande(text)
    for line in wrong[:5]:
        note(f"left out: {line}")
    if len(wrong) > 5:
        note(f"left out: {len(wrong) - 5} more lines")
    return (), some_of(blanks, n)


def _context(model: Model, load: dict[str, Any], most_answers: int) -> Context:
    if load["plan"] is None:
        load["n_ctx"] = _N_CTX if load["n_ctx"] is None else load["n_ctx"]
        load["n_seq_max"] = max(sequences_for(model.config, _N_SEQS), most_answers)
        n_ubatch = DEFAULT_N_UBATCH if load["n_ubatch"] is None else load["n_ubatch"]
        load["n_outputs"] = n_outputs_for(model.config.n_vocab, n_ubatch)
    with LoadProgress() as progress:
        return Context(model, progress=progress, **load)


def _shown(
    results: Iterator[TaskResult], n: int, line: Callable[[TaskResult], str], quiet: bool
) -> Score:
    last, listed = None, not quiet and sys.stdout.isatty()
    with CountProgress("answering tasks") as bar:
        for last in results:
            if not quiet:
                print(line(last), flush=True)
            if not listed:
                bar(last.so_far.n_tasks, n)
    assert last is not None
    return last.so_far


def _hellaswag_line(result: TaskResult) -> str:
    low, high = result.so_far.interval
    done = result.so_far
    return f"{done.n_tasks}\t{100 * done.accuracy:.8f}%\t[{100 * low:.4f}%, {100 * high:.4f}%]"


def _winogrande_line(result: TaskResult) -> str:
    one, other = result.scores
    done = result.so_far
    right = result.chosen if result.right else 1 - result.chosen
    return (
        f"{done.n_tasks}\t{100 * done.accuracy:.4f}\t{one:10.6f}  {other:10.6f}  "
        f"{result.chosen + 1}  {right + 1}"
    )


def _multiple_choice_line(result: TaskResult) -> str:
    return f"{result.so_far.n_tasks}\t{100 * result.so_far.accuracy:.8f}"


_LINES: dict[Kind, Callable[[TaskResult], str]] = {
    "hellaswag": _hellaswag_line,
    "winogrande": _winogrande_line,
    "multiple-choice": _multiple_choice_line,
}


def _row(kind: Kind, model: Path, score: Score) -> dict[str, Any]:
    low, high = score.interval
    return {
        "model": model.name,
        "task": kind,
        "n_tasks": score.n_tasks,
        "n_right": score.n_right,
        "accuracy": score.accuracy,
        "accuracy_error": score.error,
        "interval_95": [low, high],
        "chance": score.chance,
    }

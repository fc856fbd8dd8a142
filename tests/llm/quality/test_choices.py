"""Tasks with several answers, against llama-perplexity's lines; and damaged files of them."""

from __future__ import annotations

import struct

import pytest

from tests.llm.quality.golden import DATA, f32_model, figures, opened
from weft.errors import ContextError, FormatError
from weft.llm import Context, Tokenizer
from weft.llm.quality.choices import Score, score_blanks, score_choices
from weft.llm.quality.tasks import (
    Blank,
    Choice,
    read_hellaswag,
    read_multiple_choice,
    read_winogrande,
    some_hellaswag,
    some_of,
)

Loaded = tuple[Tokenizer, Context]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = f32_model(tmp_path_factory.mktemp("choices"))
    _, tokenizer, context = opened(path, 512, n_seq_max=16, n_outputs=50)
    return tokenizer, context


def golden(name: str) -> list[list[float]]:
    return [figures(line) for line in (DATA / name).read_text().splitlines()]


@pytest.mark.parametrize("n", [400, 15])
def test_hellaswag(loaded: Loaded, n: int) -> None:
    tasks = some_hellaswag(read_hellaswag((DATA / "hellaswag.txt").read_text()), n)
    got = [result.so_far for result in score_choices(loaded[1], loaded[0], tasks)]
    want = golden(f"hellaswag.{n}.out")
    rows = [[100 * s.accuracy, *(100 * bound for bound in s.interval)] for s in got]
    assert rows == [pytest.approx(row, abs=1e-4) for row in want]
    assert len({row[0] for row in want}) > 3


@pytest.mark.parametrize("n", [400, 15])
def test_multiple_choice(loaded: Loaded, n: int) -> None:
    tasks = some_of(read_multiple_choice((DATA / "choices.bin").read_bytes()), n)
    got = [100 * r.so_far.accuracy for r in score_choices(loaded[1], loaded[0], tasks)]
    assert got == [pytest.approx(row[0]) for row in golden(f"multiple-choice.{n}.out")]


@pytest.mark.parametrize("n", [400, 15])
def test_winogrande(loaded: Loaded, n: int) -> None:
    tasks, _ = read_winogrande((DATA / "winogrande.csv").read_text())
    results = list(score_blanks(loaded[1], loaded[0], some_of(tasks, n)))
    want = (DATA / f"winogrande.{n}.out").read_text().splitlines()
    assert len(results) == len(want)
    for result, line in zip(results, want, strict=True):
        accuracy, *scores = figures(line)
        assert 100 * result.so_far.accuracy == pytest.approx(accuracy, abs=1e-4)
        assert result.scores == pytest.approx(scores, abs=2e-5)
        assert result.chosen + 1 == int(line.split()[-2])


def test_answers_that_begin_alike(loaded: Loaded) -> None:
    tokenizer, context = loaded
    task = Choice("What is 1 + 1?", ("2.", "2. 2.", "2."), frozenset({0}))
    result = next(score_choices(context, tokenizer, [task]))
    assert result.scores[0] == result.scores[2] and result.right


def test_tasks_that_do_not_fit(loaded: Loaded) -> None:
    tokenizer, context = loaded
    many = Choice("a", tuple(map(str, range(17))), frozenset({0}))
    with pytest.raises(ContextError, match="task 1 has 17 answers, but n_seq_max is 16"):
        list(score_choices(context, tokenizer, [many]))
    long = Choice("a b c d " * 300, ("x", "y"), frozenset({0}))
    with pytest.raises(ContextError, match=r"task 2 has \d+ tokens, but n_ctx is 512"):
        list(score_choices(context, tokenizer, [Choice("a", ("x", "y"), frozenset()), long]))


def test_figures_of_a_score() -> None:
    score = Score(100, 80, 400)
    assert (score.accuracy, score.chance) == (0.8, 0.25)
    assert score.error == pytest.approx((0.16 / 99) ** 0.5)
    assert score.interval == pytest.approx((0.7111, 0.8666), abs=1e-4)


def test_damaged_text_files() -> None:
    with pytest.raises(FormatError, match="6 lines each, but the file has 5"):
        read_hellaswag("a\n0\nb\nc\nd\n")
    with pytest.raises(FormatError, match="line 2 is '7', but the right ending is 0 to 3"):
        read_hellaswag("a\n7\nb\nc\nd\ne\n")
    with pytest.raises(FormatError, match="6 lines each, but the file has 0"):
        read_hellaswag("")
    good = '0,"He, or _ she.",Tom,Eva,1'
    tasks, wrong = read_winogrande(f"{good}\n1,no gap,a,b,1\nx\n2,_,a,b,3\n")
    assert tasks == [Blank("He, or ", " she.", ("Tom", "Eva"), 0)]
    assert [text.split(":")[0] for text in wrong] == ["line 2", "line 3", "line 4"]
    with pytest.raises(FormatError, match=r"no Winogrande task.*0 commas of 4"):
        read_winogrande("nothing")


def test_damaged_binary_files() -> None:
    good = (DATA / "choices.bin").read_bytes()
    tasks = read_multiple_choice(good)
    assert len(tasks) == 40 and {len(task.answers) for task in tasks} == {3, 4}
    for end in (0, 3, 4, 100, len(good) - 1):
        with pytest.raises(FormatError):
            read_multiple_choice(good[:end])
    with pytest.raises(FormatError, match="cannot have 4294967295 multiple-choice tasks"):
        read_multiple_choice(b"\xff" * 4 + good[4:])
    first = struct.unpack("<I", good[4:8])[0]
    with pytest.raises(FormatError, match="at most 100 can be"):
        size = struct.unpack("<I", good[first : first + 4])[0]
        at = first + 4 + size
        read_multiple_choice(good[:at] + struct.pack("<I", 1000) + good[at + 4 :])
    same = struct.pack("<40I", *[first] * 40)
    with pytest.raises(FormatError, match="overlaps another"):
        read_multiple_choice(good[:4] + same + good[164:200] + good[200:1000])

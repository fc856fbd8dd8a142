"""The committed demo model: its size and types, and that it belongs to the committed questions."""

from pathlib import Path

import demo_questions as dq
import gguf
import numpy as np
from demo_gguf import load
from demo_tokenizer import BOS, EOS

MODEL = Path(__file__).parents[2] / "examples" / "weft-demo.gguf"


def test_file_is_small_and_holds_q8_0_matrices_and_f32_norms() -> None:
    assert MODEL.stat().st_size <= 1_500_000
    for tensor in gguf.GGUFReader(MODEL).tensors:
        assert tensor.tensor_type.name == ("Q8_0" if len(tensor.shape) == 2 else "F32"), tensor.name


def test_numpy_forward_pass_answers_held_out_questions() -> None:
    tok, forward = load(MODEL)
    asked = [(tok.encode(p), tok.encode(f" {a}\n")) for p, a in dq.held_out(40, seed=11)]
    ids = np.full((len(asked), max(len(p + a) for p, a in asked) + 1), EOS)
    for row, (prompt, answer) in zip(ids, asked, strict=True):
        row[: 1 + len(prompt + answer)] = [BOS, *prompt, *answer]
    choice = forward(ids).argmax(-1)
    right = sum(
        row[len(prompt) :][: len(answer)].tolist() == answer
        for row, (prompt, answer) in zip(choice, asked, strict=True)
    )
    # 99.7 % are right on average; more than one miss in 40 means that file and rules differ.
    assert right >= 39

"""`weft export MODEL.gguf OUT.pte`: the official runtime generates what `weft run` does."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.cli.app import app
from weft.errors import UnsupportedOpError

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]

DEMO = Path(__file__).parents[2] / "examples" / "weft-demo.gguf"


def continued(path: Path, prompt: list[int], n: int, batch: int) -> list[int]:
    """Greedy tokens of a .pte file; the prompt goes in by calls of at most `batch` tokens."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    method = program.load_method("forward")
    at = 0

    def step(tokens: list[int]) -> int:
        nonlocal at
        positions = torch.arange(at, at + len(tokens))
        at += len(tokens)
        return int(method.execute([torch.tensor([tokens]), positions])[0][0].argmax())

    for i in range(0, len(prompt), batch):
        last = step(prompt[i : i + batch])
    out = [last]
    while len(out) < n:
        out.append(step(out[-1:]))
    return out


def same_text(model: Path, tmp_path: Path, prompt: str, *options: str) -> None:
    target = tmp_path / "model.pte"
    args = ["export", str(model), str(target), "-c", "128", "-ub", "16", *options]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    assert target.stat().st_size < model.stat().st_size * 1.3
    llm = weft.LLM(model, n_ctx=128)
    tokens = list(llm.tokenize(prompt))
    want = llm.generate(prompt, max_tokens=40, temperature=0)
    got = continued(target, tokens, 40, 16)
    text = llm.detokenize(got)
    assert text.startswith(want) or want.startswith(text), (want, text)
    assert len(want) > 10


def test_the_demo_model(tmp_path):
    same_text(DEMO, tmp_path, "What is 17 + 25?")


@pytest.mark.parametrize("options", [(), ("--no-repack",)])
@pytest.mark.parametrize("variant", ["Q8_0", "Q4_0"])
def test_stories(vectors, tmp_path, variant, options):
    model = vectors / "models" / "stories260K" / f"stories260K-{variant}.gguf"
    same_text(model, tmp_path, "Once upon a time", *options)


def test_what_is_no_cache_of_keys_is_refused(vectors, tmp_path):
    from weft_executorch.gguf import export_gguf

    (model,) = list((vectors / "models" / "archs").glob("**/mamba*.gguf"))[:1]
    with pytest.raises(UnsupportedOpError, match="no KV cache"):
        export_gguf(model, tmp_path / "no.pte", n_ctx=64)

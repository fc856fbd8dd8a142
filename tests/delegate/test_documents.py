"""The Python snippets of the documents run as they are written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
LANGUAGE = re.compile(r"^( *)```python\n(.*?)^\1```", re.S | re.M)


def snippets(path):
    results = []
    for indent, text in LANGUAGE.findall((ROOT / path).read_text()):
        results.append("\n".join(line.removeprefix(indent) for line in text.splitlines()))
    return results


@pytest.mark.parametrize(
    ("path", "count"), [("docs/executorch.md", 5), ("executorch/README.md", 2)]
)
def test_snippets_run(path, count, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 32)).eval()
    x = torch.randn(2, 256)
    names = {"model": model, "inputs": (x,), "x": x, "torch": torch}
    names["exported"] = torch.export.export(model, (x,))
    texts = snippets(path)
    assert len(texts) == count
    for snippet in texts:
        exec(compile(snippet, path, "exec"), names)
    assert (tmp_path / "model.pte").exists()
    (got,) = names["method"].execute([x])
    assert float((got - model(x)).norm() / model(x).norm()) < 0.2
    if path == "docs/executorch.md":
        check_outputs(path, tmp_path / "split.pte", capsys.readouterr().out)


def check_outputs(path, file, printed):
    """What snippets print, and what `weft explain` says of a file, stands in the document."""
    from weft_executorch.describe import describe, describe_text

    description = describe(file)
    graph = description["methods"][0]["parts"][0]["graph"]
    lines = [*printed.splitlines(), *describe_text(description).splitlines()[2:]]
    lines = [line.strip() for line in (*lines, *graph.splitlines())]
    shown = {line.strip() for line in (ROOT / path).read_text().splitlines()}
    assert len(lines) == 22 and [line for line in lines if line not in shown] == []


def test_without_pytorch_the_error_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import weft; weft.from_torch(None)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (
        "ImportError: weft.from_torch needs PyTorch; install it with `pip install 'weft[torch]'`"
        in process.stderr
    )


def test_without_the_library_the_error_names_the_command(monkeypatch):
    from weft_executorch import library

    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="make delegate"):
        library.library_path()

"""Command lines of llama.cpp, Ollama and vLLM: they work, or the error says what does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Done, weft
from tests.llm.tiny import metadata, write_model
from weft.frontends.gguf import open_gguf

FEW = ("-n", "4", "--temp", "0", "-t", "1")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes: dict[str, Any] = {"llama.context_length": 256}
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**changes))


def done(*args: str | Path, typed: str = "") -> Done:
    process = weft(*args, typed=typed)
    assert process.returncode == 0, process.stderr
    return process


# **** options ****


def test_a_bias_of_the_end_token_has_an_option(path: Path) -> None:
    refused = weft("run", path, "-p", "a", "-l", "EOS-inf")
    assert refused.returncode == 1 and "--ignore-eos does that" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run MODEL -p a -ncmoe 3", "no option -ncmoe: --place 'blk.*.ffn_*_exps=cpu' keeps"),
        ("run MODEL -p a -ot exps=CPU", "no option -ot: --place 'GLOB=DEVICE' says"),
        ("embed MODEL a -md x.gguf", "no option -md: run, chat, serve and explain"),
        ("run MODEL -p a --chat-template x", "weft chat and weft serve have it"),
        ("run MODEL -p a --reasoning-format none", "weft chat and weft serve have it"),
        ("chat MODEL -mli", "a line that ends with \\ goes on"),
        ("chat MODEL -ptc 1", "/stats of weft chat says it"),
        ("run MODEL -npp 16", "no option -npp: weft bench has it"),
        ("bench MODEL --num-prompts 8", "benchmarks/serve.py of weft's repository"),
        ("run MODEL -p a --pooling mean", "weft embed and weft serve have it"),
        ("run MODEL -p a -lcs x", "weft drafts from the texts of the cache by itself"),
        ("serve MODEL --sleep-idle-seconds 5", "--keep-alive TIME"),
        ("serve MODEL --generation-config vllm", "--temp, --top-k, --top-p"),
        ("serve MODEL --dtype bfloat16", "--type quantizes them while loading"),
        ("serve MODEL --context-shift", "weft run and weft chat have it"),
        ("run MODEL -p a --merge b", "write weft gguf merge IN OUT"),
        ("run -hf a/b -hff x.gguf -p a", "no option -hff: write the model as hf:OWNER/NAME/"),
        ("run MODEL -p a --grp-attn-n 4", "no option --grp-attn-n: --rope-scaling yarn --rope-"),
        ("tokenize MODEL a --rope-scaling yarn", "commands that load a model have it"),
        ("embed MODEL --mmproj=x", "no option --mmproj: weft run, chat and serve see images"),
        ("serve MODEL --max-model-len 64", "no option --max-model-len: -c says"),
        ("serve MODEL --tensor-parallel-size 2", "--devices names the devices"),
        ("run MODEL --ssl-key-file x", "weft serve has it"),
        ("serve MODEL --n-predict 5", "there is no option --n-predict\n"),
        ("serve MODEL -x", "there is no option -x\n"),
        ("bench -m MODEL -rpc x", "no option -rpc: weft worker lends"),
        ("perplexity MODEL -f x --kl", "--kl-base FILE"),
        ("embed MODEL a --hellaswag", "weft perplexity has it"),
        ("embed MODEL a --embd-normalize 1", "weft has 2 (length 1) and -1 (none)"),
    ],
)
def test_what_there_is_not_has_a_hint(path: Path, words: str, said: str) -> None:
    refused = weft(*(str(path) if word == "MODEL" else word for word in words.split()))
    assert refused.returncode == 2 and said in refused.stderr
    assert refused.stderr.startswith("error: ") and not refused.stdout


def test_switches_with_a_value(path: Path) -> None:
    few = ("run", path, "abc", *FEW)
    want = done(*few)
    for words in ("--color on", "--color off", "--fit off", "-fit off", "--fit=0", "--mmap true",
                  "--display-prompt off", "--context-shift=off", "-co auto", "--jinja on",
                  "--escape off", "--repack auto"):  # fmt: skip
        assert done(*few, *words.split()).stdout == want.stdout, words
    assert done(*few, "--display-prompt", "on").stdout == "abc" + want.stdout
    assert done(*few, "--display-prompt=1").stdout == "abc" + want.stdout
    assert done(*few, "--no-display-prompt", "off").stdout == "abc" + want.stdout
    assert done(*few, "--quiet", "on").stderr == "" != done(*few, "--quiet", "off").stderr
    on = done("run", path, *FEW, "-q", "--display-prompt", "-p", "on").stdout
    assert on.startswith("on")
    assert "does not take a value" in weft(*few, "--quiet=maybe").stderr


def test_values_that_ask_for_what_happens(path: Path) -> None:
    few = ("run", path, "abc", *FEW, "-q")
    want = done(*few).stdout
    for words in ("--dtype auto", "--tensor-parallel-size 1", "-tp=1", "--load-format=auto"):
        assert done(*few, *words.split()).stdout == want, words
    assert done("run", path, "abc", *FEW[:2], "--temperature", "0", "-t", "1", "-q").stdout == want
    assert done("run", path, "abc", "--max-tokens", "4", *FEW[2:], "-q").stdout == want


def test_values_are_no_options(path: Path) -> None:
    want = done("run", path, "-p", "-md", *FEW, "-q").stdout
    assert done("run", path, *FEW, "-q", "--", "-md").stdout == want


def test_options_about_gpus_are_noted(path: Path) -> None:
    few = ("run", path, "abc", *FEW)
    plain = done(*few)
    same = done(*few, "-sm", "layer", "-mg", "0")
    assert same.stdout == plain.stdout and "note" not in same.stderr
    noted = done(*few, "-sm", "row", "-mg", "1", "-ts", "3,1", "-nopo", "--no-host")
    assert noted.stdout == plain.stdout and noted.stderr.count("changes nothing: ") == 4
    assert "-ts 3,1 changes nothing: -ngl, --fit and --place" in noted.stderr


def test_devices_of_other_engines(path: Path) -> None:
    none = done("run", path, "abc", *FEW, "-dev", "none")
    assert none.stdout == done("run", path, "abc", *FEW).stdout
    assert "placement: cpu" in none.stderr
    for name in ("Vulkan1", "metal", "hip:0"):
        refused = weft("run", path, "abc", "-dev", name)
        assert refused.returncode == 1 and f"there is no device {name}" in refused.stderr
        assert "`weft devices`" in refused.stderr


def test_the_whole_prompt_may_be_kept(path: Path) -> None:
    few = ("run", path, "abc the", "-n", "40", "--temp", "0", "-c", "16", "--context-shift", "-q",
           "--ignore-eos")  # fmt: skip
    n = len(done("tokenize", path, "abc the").stdout.splitlines())
    assert done(*few, "--keep", "-1").stdout == done(*few, "--keep", str(n)).stdout
    assert "--keep is -2; it must be 0 to 14" in weft(*few, "--keep", "-2").stderr


# **** other commands ****


def test_texts_by_flag(path: Path) -> None:
    want = done("tokenize", path, "abc").stdout
    assert done("tokenize", "-m", path, "-p", "abc", "--log-disable").stdout == want
    assert done("tokenize", path, "--stdin", typed="abc").stdout == want
    assert done("tokenize", path, "-p", "abc", "--ids", "--show-count").stdout.endswith("]\n3\n")
    both = weft("tokenize", path, "abc", "-p", "abc")
    assert both.returncode == 1 and "as an argument or with -p, --file or --stdin" in both.stderr
    vectors = done("embed", path, "abc", "the", "-o", "raw").stdout
    assert done("embed", path, "-p", "abc", "-p", "the", "-o", "raw").stdout == vectors
    plain = done("embed", path, "abc", "-o", "raw", "--no-normalize").stdout
    assert done("embed", path, "abc", "-o", "raw", "--embd-normalize", "-1").stdout == plain


def test_chat_takes_what_llama_cli_does(path: Path, tmp_path: Path) -> None:
    few = ("chat", path, "-q", "-st", "-p", "abc", *FEW)
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "t.jinja").write_text(source)
    want = done(*few, "--chat-template", source).stdout
    assert done(*few, "-i", "-cnv", "--chat-template-file", tmp_path / "t.jinja").stdout == want
    missing = weft(*few, "--chat-template", "llama2")
    assert missing.returncode == 1
    assert "--chat-template llama2: no such file; give a file with a Jinja" in missing.stderr


def test_more_of_chat(path: Path, tmp_path: Path) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    few = ("chat", path, "-st", "--chat-template", source, *FEW)
    said = tmp_path / "said.txt"
    said.write_text("abc\n")
    want = done(*few, "-q", "-p", "abc").stdout
    assert done(*few, "-q", "-f", said).stdout == want
    assert "tokens/s; answer: " in done(*few, "-p", "abc", "-v").stderr
    by_text = done(*few, "-q", "-p", "the", "-sys", "abc").stdout
    assert done(*few, "-q", "-p", "the", "-sysf", said).stdout == by_text
    assert "as text or with --file, not both" in weft(*few, "-p", "abc", "-f", said).stderr
    noted = done(*few, "-p", "abc", "--reasoning-format", "none").stderr
    assert "--reasoning-format none changes nothing" in noted


def test_hidden_options_are_not_proposed(path: Path) -> None:
    refused = weft("serve", path, "--reason-format", "text").stderr
    assert "no option --reason-format" in refused and "--reasoning-format" not in refused
    usage = done("quantize", "--help").stdout.splitlines()[0]
    assert usage == "Usage: weft quantize [OPTIONS] IN OUT TYPE [THREADS]"


def test_types_by_number(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done("quantize", path, out, "7", "4", "--allow-requantize")
    with open_gguf(out) as file:
        assert file.get_int("general.file_type") == 7


def test_commands_of_other_engines() -> None:
    for words, said in (
        ("download x", "weft pull hf:"), ("ls", "weft list shows"),
        ("launch x", "weft serve MODEL"),
        ("llama-completion -m x -p a", "weft run continues a text"),
        ("llama-mtmd-cli -m x", "see images and hear sounds"),
        ("rpc-server", "weft worker lends"), ("llama-batched-bench -m x", "weft bench -npl"),
        ("llama-cli -m x", "weft run continues a text, weft chat talks"),
        ("llama-bench", "weft bench does that"), ("llama-server", "weft serve is one"),
        ("llama-embedding", "weft embed does that"),
        ("llama-imatrix -m x", "weft imatrix does that"),
        ("convert-hf-to-gguf x", "weft convert does that"),
    ):  # fmt: skip
        refused = weft(*words.split())
        assert refused.returncode == 2 and said in refused.stderr, words


def test_pages_of_models(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr("weft.llm.hub.local_path", lambda name: asked.append(str(name)) or path)
    for name in ("hf.co/a/b:Q8_0", "https://huggingface.co/a/b:Q8_0", "huggingface.co/a/b:Q8_0"):
        done("inspect", name)
    assert asked == ["hf:a/b:Q8_0"] * 3


def test_an_address_is_no_file() -> None:
    refused = weft("run", "https://example.org/m.gguf", "abc")
    assert refused.returncode == 1 and "fetch it first, or name a Hugging" in refused.stderr

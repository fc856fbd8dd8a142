"""Sampling options as flags."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from weft.cli.groups import grouped
from weft.cli.mistakes import flag_name
from weft.cli.sampling_options import SamplingFlags
from weft.errors import ContextError
from weft.llm import SamplingParams
from weft.llm.sampling import SAMPLING_OPTIONS


def parsed(*arguments: str) -> tuple[str, SamplingParams, int]:
    """What a command with these arguments gets."""
    seen: list[Any] = []
    app = typer.Typer()

    @app.command()
    @grouped
    def command(
        name: str, *, sampling: Annotated[SamplingParams, SamplingFlags], count: int = 3
    ) -> None:
        seen.append((name, sampling, count))

    result = CliRunner().invoke(app, ["x", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def sampling_params(**flags: Any) -> SamplingParams:
    params: SamplingParams = SamplingFlags(**flags).made({})
    return params


def test_defaults_are_those_of_the_library() -> None:
    assert parsed() == ("x", SamplingParams(), 3)
    assert sampling_params() == SamplingParams()


def test_every_option_has_a_flag_with_its_default() -> None:
    parameters = {p.name: p for p in SamplingFlags.parameters()}
    assert SAMPLING_OPTIONS.keys() == parameters.keys()
    assert all(option.flags[0] == flag_name(name) for name, option in SAMPLING_OPTIONS.items())
    for name, parameter in parameters.items():
        if name not in ("dry_sequence_breakers", "samplers"):
            assert parameter.default == SAMPLING_OPTIONS[name].default
    with pytest.raises(TypeError, match="SamplingFlags has no tmp"):
        sampling_params(tmp=0.5)


def test_every_flag() -> None:
    line = """--temp 0.5 --top-k 7 --top-p 0.8 --min-p 0.1 --seed 3 --typical 0.9 --top-n-sigma 2
        --xtc-probability 0.4 --xtc-threshold 0.2 --min-keep 2 --dynatemp-range 0.1 --dynatemp-exp 2
        --repeat-penalty 1.2 --repeat-last-n 9 --presence-penalty 0.3 --frequency-penalty 0.6
        --dry-multiplier 0.7 --dry-base 1.5 --dry-allowed-length 3 --dry-penalty-last-n 99
        --dry-sequence-breaker \\n --dry-sequence-breaker . --mirostat 2 --mirostat-lr 0.2
        --mirostat-ent 4 --adaptive-target 0.5 --adaptive-decay 0.8 --logit-bias 5+1.5
        -l 7-inf --samplers top_k;temperature --regex a+ --count 4 --diffusion-steps 9
        --diffusion-block-length 8 --diffusion-algorithm 1 --diffusion-alg-temp 0.3
        --diffusion-schedule cosine --diffusion-cfg-scale 1.5
        --diffusion-add-gumbel-noise 1""".split()
    assert parsed(*line) == (
        "x",
        SamplingParams(
            temperature=0.5, top_k=7, top_p=0.8, min_p=0.1, seed=3, typical_p=0.9, top_n_sigma=2,
            xtc_probability=0.4, xtc_threshold=0.2, min_keep=2, dynatemp_range=0.1,
            dynatemp_exponent=2, repeat_penalty=1.2, repeat_last_n=9, presence_penalty=0.3,
            frequency_penalty=0.6, dry_multiplier=0.7, dry_base=1.5, dry_allowed_length=3,
            dry_last_n=99,
            dry_sequence_breakers=("\n", "."), mirostat=2, mirostat_eta=0.2, mirostat_tau=4,
            adaptive_target=0.5, adaptive_decay=0.8,
            logit_bias={5: 1.5, 7: float("-inf")}, samplers="top_k;temperature", regex="a+",
            diffusion_steps=9, diffusion_block_length=8, diffusion_algorithm="entropy",
            diffusion_alg_temp=0.3, diffusion_schedule="cosine", diffusion_cfg_scale=1.5,
            diffusion_add_gumbel_noise=1,
        ),
        4,
    )  # fmt: skip


def test_flags_of_numbers_set_their_fields() -> None:
    numbers = [n for n, o in SAMPLING_OPTIONS.items() if type(o.default) in (int, float)]
    assert len(numbers) > 20
    for name in numbers:
        least = name in ("mirostat", "dry_base", "diffusion_steps")
        value = 2 if least else type(SAMPLING_OPTIONS[name].default)(0.5)
        for flag in SAMPLING_OPTIONS[name].flags:
            assert parsed(flag, str(value))[1] == SamplingParams(**{name: value}), flag


def test_minus_one_is_what_it_is_elsewhere() -> None:
    assert parsed("--top-k", "-1", "--seed", "-1") == ("x", SamplingParams(top_k=0), 3)
    assert parsed("--seed", "4294967295") == ("x", SamplingParams(), 3)


def test_no_breakers() -> None:
    assert sampling_params(dry_sequence_breakers=["none"]).dry_sequence_breakers == ()


def test_text_or_file(tmp_path: Path) -> None:
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "é"', encoding="utf-8")
    assert sampling_params(grammar=str(path)).grammar == 'root ::= "é"'
    assert sampling_params(grammar='root ::= "a"').grammar == 'root ::= "a"'
    assert sampling_params(json_schema='{"type": "object"}').json_schema == '{"type": "object"}'
    with pytest.raises(ContextError, match=r"--json-schema: no such file none\.json"):
        sampling_params(json_schema="none.json")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ContextError, match="--grammar: cannot read"):
        sampling_params(grammar=str(path))


@pytest.mark.parametrize("text", ["5", "x+1", "5+", "5+y", "-3+1"])
def test_bad_biases(text: str) -> None:
    with pytest.raises(ContextError, match=r"--logit-bias .*write ID"):
        sampling_params(logit_bias=[text])


def test_a_wrong_value_names_the_option() -> None:
    with pytest.raises(ContextError, match="top_p is 3"):
        sampling_params(top_p=3.0)


def test_the_command_keeps_its_name() -> None:
    from weft.cli.run import run

    assert run.__name__ == "run" and "sampling" not in inspect.signature(run).parameters

"""The options that say how tokens are drafted, as llama.cpp and vLLM spell them.

    @draft_flags
    def run(..., drafts: DraftOptions | None, ...) -> None: ...

A command gets what all of them say as `drafts`; None: nothing is drafted.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from weft.cli.command import MODEL, usage_error
from weft.cli.console import note
from weft.cli.model_file import find_model
from weft.cli.replaced import parameters_of, replaces
from weft.llm.planning.draft_options import MOST, P_MIN, DraftOptions

__all__ = ["draft_flags", "draft_options"]

_LOOKED_UP = ("ngram", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""All names of drafts that are looked up in the text; weft has one kind."""
_BY_MODEL = ("draft", "draft-simple", "draft_model")
_BY_LAYERS = ("mtp", "draft-mtp", "deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp",
              "nemotron_h_mtp", "ernie_mtp", "exaone_moe_mtp")  # fmt: skip
_KINDS = "ngram, draft, mtp or none"

SpecType = Annotated[
    str,
    typer.Option(
        "--spec-type", metavar="KIND,...", rich_help_panel=MODEL,
        help="How tokens are guessed, of which several are checked at once; the text is the same. "
        "ngram: what the text repeats; draft: by the model of -md (both, if that is given); mtp: "
        "by layers of the model that were trained for it; none.",
    ),
]  # fmt: skip
ModelDraft = Annotated[
    str | None,
    typer.Option(
        "--model-draft", "-md", "--spec-draft-model", metavar="MODEL", rich_help_panel=MODEL,
        help="A smaller model with the same vocabulary, which guesses tokens.",
    ),
]  # fmt: skip
DraftRepository = Annotated[
    str | None,
    typer.Option(
        "--hf-repo-draft", "-hfd", "-hfrd", "--spec-draft-hf", metavar="OWNER/NAME[:QUANT]",
        hidden=True, help="The same, of a Hugging Face repository.",
    ),
]  # fmt: skip
DraftMax = Annotated[
    int,
    typer.Option(
        "--draft-max", "--draft", "--draft-n", "--spec-draft-n-max", rich_help_panel=MODEL,
        help="Most tokens that are guessed at once; 0: none.",
    ),
]  # fmt: skip
DraftMin = Annotated[
    int,
    typer.Option(
        "--draft-min", "--draft-n-min", "--spec-draft-n-min", rich_help_panel=MODEL,
        help="Fewer tokens are not guessed.",
    ),
]  # fmt: skip
DraftPMin = Annotated[
    float,
    typer.Option(
        "--draft-p-min", "--spec-draft-p-min", rich_help_panel=MODEL,
        help="A model's guesses end in front of a token that it gives less probability.",
    ),
]  # fmt: skip
DraftContext = Annotated[
    int | None,
    typer.Option(
        "--ctx-size-draft", "-cd", "--spec-draft-ctx-size", rich_help_panel=MODEL,
        help="Tokens of context of the model of -md; longer texts are not guessed by it. Default: "
        "as the model has.",
    ),
]  # fmt: skip
DraftTypeK = Annotated[
    str | None,
    typer.Option("--cache-type-k-draft", "-ctkd", "--spec-draft-type-k", hidden=True),
]
DraftTypeV = Annotated[
    str | None,
    typer.Option("--cache-type-v-draft", "-ctvd", "--spec-draft-type-v", hidden=True),
]
DraftLayers = Annotated[
    str | None,
    typer.Option("--gpu-layers-draft", "-ngld", "--n-gpu-layers-draft", "--spec-draft-ngl",
                 hidden=True),
]  # fmt: skip
DraftDevice = Annotated[
    str | None,
    typer.Option("--device-draft", "-devd", "--spec-draft-device", hidden=True),
]
SpecConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config", metavar="JSON", hidden=True,
        help="As vLLM has it: method, model and num_speculative_tokens.",
    ),
]  # fmt: skip


def draft_options(
    spec_type: SpecType = "ngram",
    model_draft: ModelDraft = None,
    hf_repo_draft: DraftRepository = None,
    draft_max: DraftMax = MOST,
    draft_min: DraftMin = 0,
    draft_p_min: DraftPMin = P_MIN,
    ctx_size_draft: DraftContext = None,
    cache_type_k_draft: DraftTypeK = None,
    cache_type_v_draft: DraftTypeV = None,
    gpu_layers_draft: DraftLayers = None,
    device_draft: DraftDevice = None,
    speculative_config: SpecConfig = None,
) -> DraftOptions | None:
    """How tokens are drafted; None: not at all. What the JSON of vLLM says comes first."""
    if hf_repo_draft is not None and model_draft is None:
        model_draft = f"hf:{hf_repo_draft.removeprefix('hf:')}"
    if speculative_config is not None:
        spec_type, model_draft, draft_max = _from_json(
            speculative_config, spec_type, model_draft, draft_max
        )
    if gpu_layers_draft not in (None, "0") or device_draft not in (None, "none", "cpu"):
        note("-ngld and -devd have no effect: the model of -md runs where the other one does")
    names = [name.strip() for name in spec_type.split(",") if name.strip() != "none"]
    for name in names:
        if name not in (*_LOOKED_UP, *_BY_MODEL, *_BY_LAYERS):
            raise usage_error(f"--spec-type {name}: it is {_KINDS}")
    if spec_type == "ngram" and model_draft is not None:
        names.append("draft")
    by_model = any(name in _BY_MODEL for name in names)
    if by_model and model_draft is None:
        raise usage_error(f"--spec-type {spec_type} needs a model that drafts: -md MODEL")
    if not names or not draft_max:
        return None
    given = {"n_ctx": ctx_size_draft, "type_k": cache_type_k_draft, "type_v": cache_type_v_draft}
    return DraftOptions(
        ngram=any(name in _LOOKED_UP for name in names),
        most=min(draft_max, MOST),
        least=min(draft_min, MOST),
        model=find_model(model_draft) if by_model and model_draft is not None else None,
        layers=any(name in _BY_LAYERS for name in names),
        p_min=draft_p_min,
        model_options={name: value for name, value in given.items() if value is not None},
    )


draft_flags = replaces("drafts", parameters_of(draft_options), draft_options)
"""Replaces the parameter `drafts` of a command by the flags."""


def _from_json(text: str, kinds: str, model: str | None, most: int) -> tuple[str, str | None, int]:
    """The kinds, the model and the number of tokens of vLLM's JSON."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise usage_error(f"--speculative-config: {error}") from None
    if not isinstance(config, dict):
        raise usage_error('--speculative-config is an object, e.g. \'{"method": "ngram"}\'')
    named = config.get("model")
    if named not in (None, "ngram", "[ngram]"):
        model = named
        kinds = "draft" if kinds == "ngram" else kinds
    method, n = config.get("method", kinds), config.get("num_speculative_tokens", most)
    if not (isinstance(method, str) and isinstance(n, int) and isinstance(model, str | None)):
        raise usage_error(
            "--speculative-config: method and model are texts and num_speculative_tokens a number"
        )
    return method, model, n

"""The options that say how tokens are drafted, as llama.cpp and vLLM spell them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.cli.command import usage_error
from weft.cli.console import note
from weft.cli.groups import Group
from weft.cli.model_file import find_model
from weft.llm.planning.draft_options import MOST, P_MIN, DraftOptions
from weft.options import MODEL, option

_LOOKED_UP = ("ngram", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""All names of drafts that are looked up in the text; weft has one kind."""
_BY_MODEL = ("draft", "draft-simple", "draft_model", "eagle3", "draft-eagle3", "eagle",
             "dflash", "draft-dflash")  # fmt: skip
"""All names of drafts by a model of its own; its file says of what kind it is."""
_BY_LAYERS = ("mtp", "draft-mtp", "deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp",
              "nemotron_h_mtp", "ernie_mtp", "exaone_moe_mtp")  # fmt: skip
_KINDS = "ngram, draft (of any kind of -md MODEL, also draft-eagle3, ...), mtp or none"


class DraftFlags(Group):
    """How tokens are drafted. The command gets `DraftOptions`; None: nothing is drafted."""

    spec_type: str = option(
        "ngram",
        "How tokens are guessed, of which several are checked at once; the text is the same. "
        "ngram: what the text repeats; draft: by the model of -md (both, if that is given); mtp: "
        "by layers of the model that were trained for it; none.", panel=MODEL, metavar="KIND,...",
    )  # fmt: skip
    model_draft: str | None = option(
        None, "A smaller model with the same vocabulary, which guesses tokens, or one that was "
        "trained to draft for this model (EAGLE-3, DFlash, Gemma 4's assistants).",
        "--model-draft -md --spec-draft-model", MODEL, metavar="MODEL",
    )  # fmt: skip
    hf_repo_draft: str | None = option(
        None, "The same, of a Hugging Face repository.",
        "--hf-repo-draft -hfd -hfrd --spec-draft-hf", metavar="OWNER/NAME[:QUANT]", hidden=True,
    )  # fmt: skip
    draft_max: int = option(
        MOST, "Most tokens that are guessed at once; 0: none.",
        "--draft-max --draft --draft-n --spec-draft-n-max", MODEL,
    )  # fmt: skip
    draft_min: int = option(
        0, "Fewer tokens are not guessed.", "--draft-min --draft-n-min --spec-draft-n-min", MODEL
    )
    draft_p_min: float = option(
        P_MIN, "A model's guesses end in front of a token that it gives less probability.",
        "--draft-p-min --spec-draft-p-min", MODEL,
    )  # fmt: skip
    ctx_size_draft: int | None = option(
        None,
        "Tokens of context of the model of -md; longer texts are not guessed by it. Default: as "
        "the model has.", "--ctx-size-draft -cd --spec-draft-ctx-size", MODEL,
    )  # fmt: skip
    cache_type_k_draft: str | None = option(
        None, "", "--cache-type-k-draft -ctkd --spec-draft-type-k", hidden=True
    )
    cache_type_v_draft: str | None = option(
        None, "", "--cache-type-v-draft -ctvd --spec-draft-type-v", hidden=True
    )
    gpu_layers_draft: str | None = option(
        None, "", "--gpu-layers-draft -ngld --n-gpu-layers-draft --spec-draft-ngl", hidden=True
    )
    device_draft: str | None = option(
        None, "", "--device-draft -devd --spec-draft-device", hidden=True
    )
    speculative_config: str | None = option(
        None, "As vLLM has it: method, model and num_speculative_tokens.", metavar="JSON",
        hidden=True,
    )  # fmt: skip

    def made(self, given: Mapping[str, Any]) -> DraftOptions | None:
        """The drafts that the options ask for; the JSON of vLLM comes first."""
        kinds, model, most = self.spec_type, self.model_draft, self.draft_max
        if self.hf_repo_draft is not None and model is None:
            model = f"hf:{self.hf_repo_draft.removeprefix('hf:')}"
        if self.speculative_config is not None:
            kinds, model, most = _from_json(self.speculative_config, kinds, model, most)
        device = self.device_draft
        if self.gpu_layers_draft not in (None, "0") or device not in (None, "none", "cpu"):
            note("-ngld and -devd have no effect: the model of -md runs where the other one does")
        names = [name.strip() for name in kinds.split(",") if name.strip() != "none"]
        for name in names:
            if name not in (*_LOOKED_UP, *_BY_MODEL, *_BY_LAYERS):
                raise usage_error(f"--spec-type {name}: it is {_KINDS}")
        if kinds == "ngram" and model is not None:
            names.append("draft")
        by_model = any(name in _BY_MODEL for name in names)
        if model is not None and not by_model and any(name in _BY_LAYERS for name in names):
            # llama.cpp's name for drafts by Gemma 4's assistants, too
            names, by_model = [*(n for n in names if n not in _BY_LAYERS), "draft"], True
        if by_model and model is None:
            raise usage_error(f"--spec-type {kinds} needs a model that drafts: -md MODEL")
        if not names or not most:
            return None
        own = {
            "n_ctx": self.ctx_size_draft, "type_k": self.cache_type_k_draft,
            "type_v": self.cache_type_v_draft,
        }  # fmt: skip
        return DraftOptions(
            ngram=any(name in _LOOKED_UP for name in names),
            most=min(most, MOST),
            least=min(self.draft_min, MOST),
            model=find_model(model) if by_model and model is not None else None,
            layers=any(name in _BY_LAYERS for name in names),
            p_min=self.draft_p_min,
            model_options={name: value for name, value in own.items() if value is not None},
        )


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

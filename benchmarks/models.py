"""Tiny random models of transformers with unusual settings: how many have its logits in weft.

Every model of tests/llm/hf_folders.py is varied in one setting at a time, as far as its
configuration has it: scaled rotary embeddings, windows, biases, sizes and groups of heads, caps,
experts. Each is saved, and read straight and as a GGUF file of `weft convert`, in float32, with
ubatches of 7 tokens. A row says the largest error as a part of the logits' deviation, or why the
model was refused; what transformers itself refuses is left out. `differs` is a fault, a wrong
result in silence; but not for epsilons of latent attention, which are constants in transformers.

    python benchmarks/models.py                  # all, about 2000 cases and half an hour
    python benchmarks/models.py --only 'gemma' --sample 20
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from tests.llm import hf_folders
from weft.errors import WeftError
from weft.frontends.hf.convert import convert_folder
from weft.llm import Context
from weft.llm.model import Model

Options = dict[str, Any]
IDS = np.random.default_rng(5).integers(5, 340, 40).tolist()
EQUAL, ROUGH = 4e-4, 5e-3
"""Largest errors; rough ones have another form of GELU than files stand for."""

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
ROPES: dict[str, Options] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": YARN,
    "yarn, magnitude": YARN | {"attention_factor": 1.3},
    "yarn, multipliers": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    "llama3": hf_folders.LLAMA3 | {"original_max_position_embeddings": 32},
    "theta": {"rope_type": "default", "rope_theta": 333.0},
}
FLAGS = (
    "attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "use_qk_norm", "qk_layernorm",
    "alibi", "norm_topk_prob", "use_parallel_residual", "tie_word_embeddings", "mamba_proj_bias",
    "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
)  # fmt: skip
VALUES: Options = {
    "vocab_size": 397, "head_dim": 12, "rms_norm_eps": 0.02, "layer_norm_eps": 0.02,
    "hidden_act": "relu", "hidden_activation": "relu", "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 20, "attention_multiplier": 0.3,
    "residual_multiplier": 0.3, "logits_scaling": 2.5, "routed_scaling_factor": 1.7,
    "clip_qkv": 0.4, "sliding_window": 6, "num_experts_per_tok": 1, "first_k_dense_replace": 0,
    "n_shared_experts": 2, "num_hidden_layers": 5, "intermediate_size": 52,
    "scoring_func": "softmax",
}  # fmt: skip


def variants(values: Options) -> Iterator[tuple[str, Options]]:
    """Names of changes to a configuration, and the options that make them."""
    yield "as it is", {}
    rope = values.get("rope_parameters")
    if isinstance(rope, dict):
        main = rope.get("full_attention", rope)
        kinds = {name: main | change for name, change in ROPES.items()}
        kinds["half a head"] = main | {"partial_rotary_factor": 0.5}
        for name, new in kinds.items():
            whole = rope | {"full_attention": new} if main is not rope else new
            yield f"rope: {name}", {"rope_parameters": whole}
    for name in FLAGS:
        if isinstance(values.get(name), bool):
            yield f"{name} {not values[name]}", {name: not values[name]}
    for name, value in VALUES.items():
        if values.get(name) is not None:
            yield f"{name} {value}", {name: value}
    if values.get("num_key_value_heads"):
        yield "one key head for 8", {"num_attention_heads": 8, "num_key_value_heads": 1}
    kinds = values.get("layer_types")
    if kinds and set(kinds) <= {"full_attention", "sliding_attention"}:
        own = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
        other: Options = {"layer_types": own, "num_hidden_layers": 4, "sliding_window": 5}
        if "use_sliding_window" in values:
            other["use_sliding_window"] = True
        yield "other windows", other


def cases() -> Iterator[tuple[str, str, Options]]:
    """The name of each case, that of its model, and options beside the model's."""
    for name, (kind, options, _) in hf_folders.MODELS.items():
        if kind in hf_folders.SEEING or name in hf_folders.HEADLESS:
            continue
        config = getattr(transformers, f"{kind}Config")(**options)
        for change, own in variants(config.to_dict()):
            yield f"{name} / {change}", name, own


def error_of(path: Path, want: np.ndarray) -> str:
    """The largest error of the model at `path`, in words."""
    options: Options = {"type_k": "f32", "type_v": "f32", "devices": ["cpu"], "n_threads": 1}
    try:
        got = Context(Model.open(path), 64, n_ubatch=7, **options).decode(IDS, outputs="all")
    except WeftError as error:
        return f"refused: {error}".replace("\n", " ")
    error = float(np.abs(got - want).max() / want.std()) if got.shape == want.shape else np.inf
    kind = "equal" if error < EQUAL else "rough" if error < ROUGH else "differs"
    return f"{kind} {error:.1e}"


def outcome(name: str, change: Options, folder: Path) -> tuple[str, str] | None:
    """What becomes of a case, straight and as a file; None: transformers cannot make it."""
    kind, options, tokenizer = hf_folders.MODELS[name]
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    try:
        model = hf_folders.made_model(kind, suffix, options | change)
        with torch.no_grad():
            want = model(torch.tensor([IDS])).logits[0].numpy()
        model.save_pretrained(folder)
    except Exception:  # whatever transformers raises
        return None
    hf_folders.save_tokenizer(tokenizer, folder)
    straight = error_of(folder, want)
    if straight.startswith("refused"):
        return straight, straight
    convert_folder(folder, folder / "m.gguf", "f32")
    return straight, error_of(folder / "m.gguf", want)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="regex of the names of cases")
    parser.add_argument("--sample", type=int, default=0, help="so many cases at random; 0: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    todo = [case for case in cases() if re.search(args.only, case[0])]
    if args.sample:
        todo = random.Random(0).sample(todo, min(args.sample, len(todo)))
    totals: Counter[str] = Counter()
    for case, name, change in todo:
        with tempfile.TemporaryDirectory() as folder:
            found = outcome(name, change, Path(folder))
        if found is None:
            totals["not made by transformers"] += 1
            continue
        for where, row in zip(("folder", "file"), found, strict=True):
            totals[f"{where}: {re.split('[ :]', row)[0]}"] += 1
        print(f"{case} | {found[0]} | {found[1]}", flush=True)
    print(", ".join(f"{key} {n}" for key, n in sorted(totals.items())))


if __name__ == "__main__":
    main()

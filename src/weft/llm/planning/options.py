"""The options of a context and of `LLM`: the types of their values, and a table of what each does.

`context_options.py` and `placement.py` check the values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from weft.backends.base import Backend
from weft.backends.cpu import ThreadOptions
from weft.backends.cpu.experts import ExpertPolicy
from weft.llm.cache.prefix_options import PREFIX_OPTIONS
from weft.llm.planning.draft_options import DraftOptions
from weft.options import (
    ADVANCED,
    DEVICES,
    MODEL,
    PLACEMENT,
    Option,
    option,
    parse_layers,
    parse_tokens,
)
from weft.schedule import Policy, Profile
from weft.schedule.offload import OpOffloadLike

if TYPE_CHECKING:
    from weft.backends.remote.group import MachineGroup

DEFAULT_N_UBATCH = 512

DEVICE_OPTIONS = ("n_threads", "n_threads_batch", "threads", "activations")
"""Arguments that are passed on to the devices."""


class LLMPlanArguments(TypedDict, total=False):
    """The arguments of `LLM` that decide the plan of its context; see `PLAN_OPTIONS`."""

    n_batch: int | None
    n_ubatch: int | None
    n_outputs: int | None
    n_seq_max: int | None
    n_copies: int | None
    type_k: str | None
    type_v: str | None
    flash: bool | None
    swa_full: bool | None
    embeddings: bool | None
    n_threads: int | None
    n_threads_batch: int | None
    threads: ThreadOptions | None
    activations: Literal["native", "f32", "bf16"]
    devices: str | Sequence[str | Backend] | None
    machines: str | Sequence[str] | MachineGroup | None
    machine_key: bytes | None
    fallback: str | Sequence[str | Backend] | None
    n_gpu_layers: int | None
    offload_kv: bool
    place: Mapping[str, str] | None
    plan: str | os.PathLike[str] | Mapping[str, Any] | None
    fit: bool
    memory: Mapping[str, int] | None
    policy: Policy
    op_offload: OpOffloadLike
    profile: Profile | str | os.PathLike[str] | None
    repack: bool | None
    expert_budget: int | str | None
    expert_policy: ExpertPolicy | None
    rewrites: Sequence[str] | None


class PlanArguments(LLMPlanArguments, total=False):
    """The arguments of `Context` that decide its plan, besides `n_ctx`; see `PLAN_OPTIONS`."""

    beside: Sequence[Any]
    states: bool | Sequence[int]


PLAN_OPTIONS: dict[str, Option] = {
    "n_batch": option(
        None, "Most tokens of one `decode`; None: n_ctx.", "-b --batch-size"
    ),
    "n_ubatch": option(
        None, "Most tokens computed together; None: 512, at most n_batch.", "-ub --ubatch-size",
        MODEL, "TOKENS", read=parse_tokens,
        help="Most prompt tokens computed at once. Default: 512.",
    ),
    "n_outputs": option(None, "Most rows of logits computed together; None: n_ubatch."),
    "n_seq_max": option(
        None, "Most sequences (texts) in the cache; None: 1.", "--parallel -np"
    ),
    "n_copies": option(
        None,
        "Number of ubatches that run at the same time if a model is on several devices, so that "
        "all of them have work; each ubatch needs compute memory of its own. None: 1, or one for "
        "each machine, at most 4.", "--n-copies", ADVANCED,
        help="Parts of a prompt computed at the same time if a model is on several devices, so "
        "that all have work; each needs compute memory of its own. Default: 1, or one for "
        "each machine, at most 4.",
    ),
    "type_k": option(
        None,
        "Type of the keys in the cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl, "
        "whose heads are rotated before they are rounded (WEFT_ATTN_ROT_DISABLE); None: f16.",
        "-ctk --cache-type-k", MODEL, "TYPE",
        help="Type of cached keys: f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl. "
        "Default: f16.",
    ),
    "type_v": option(
        None, "Type of the values in the cache, as for the keys; None: f16.", "-ctv --cache-type-v",
        MODEL, "TYPE", help="Type of cached values, as of keys.",
    ),
    "flash": option(
        None, "True computes attention as one op; None: True.", "-fa --flash-attn", MODEL,
        "on|off|auto", help="Attention as one operation; off: as several.",
    ),
    "swa_full": option(
        None,
        "True gives layers with a sliding window as many cells as the others, so that any tokens "
        "can be removed; False gives them only the cells that they can see. None: True.",
        "--swa-full/--swa-small", ADVANCED,
        help="Sliding-window layers cache the whole context, or only what they can see.",
    ),
    "embeddings": option(
        None,
        "True makes `decode` return embeddings, the rows from which logits would be computed; "
        "models without logits (BERT) always do. None: False.",
    ),
    "n_threads": option(
        None, "Threads of the cpu device for single tokens; None: one for each physical core.",
        "-t --threads", DEVICES, help="CPU threads. Default: one per core.",
    ),
    "n_threads_batch": option(
        None, "Threads of the cpu device for several tokens at once; None: n_threads.",
        "-tb --threads-batch", DEVICES, help="CPU threads for prompts. Default: --threads.",
    ),
    "threads": option(
        None,
        "Number, processors and priority of the threads, as a `weft.ThreadOptions`; None: its "
        "defaults.",
    ),
    "activations": option(
        "native",
        '"native" lets kernels quantize activations; "f32" keeps them in float32, on GPUs, too; '
        '"bf16" computes prompts with f16 and f32 weights in bf16, which is faster and rounds to 8 '
        "bits, if the processor has bf16 dot products.", "--activations", ADVANCED,
        help="native: quantized if the weights are; f32: never quantized; bf16: like native, but "
        "prompts with f16 or f32 weights in bf16, faster and less exact.",
    ),
    "devices": option(
        None,
        "Names or backends, the preferred one first, or names in a text: \"gpu,cpu\"; the cpu is "
        "added if the last name is not a cpu. None: cpu.",
        "--devices --device -dev", DEVICES, "NAMES",
        help="Devices, highest priority first, e.g. opencl:0,cpu; `weft devices` lists them. "
        "Default: WEFT_DEVICES, else cpu.",
    ),
    "machines": option(
        None,
        "Workers (`weft worker`) whose devices come in front of `devices`: addresses HOST:PORT; "
        'or "ray" or "ray:ADDRESS", which starts them on a Ray cluster. Layers are shared out '
        "evenly where nothing else places them. A worker that fails is waited for, or left out, "
        "and its caches are computed again.", "--machines", DEVICES, "HOST:PORT,...",
        help="Workers (`weft worker`) that take layers, in front of --devices; or ray, or "
        "ray:ADDRESS, for the nodes of a Ray cluster.",
    ),
    "machine_key": option(None, "The key of `machines`, 32 bytes; None: none, on loopback only."),
    "fallback": option(
        None, "Devices to continue on, with default placement, if one of `devices` fails; None: a "
        "failure is an error.", "--fallback", DEVICES, "NAMES",
        help="Devices to continue on if one of --devices fails, e.g. cpu.",
    ),
    "n_gpu_layers": option(
        None,
        "Number of layers, counted from the last, on the first device with memory of its own; "
        "one more than the model has includes the output. None: all.",
        "-ngl --gpu-layers --n-gpu-layers", DEVICES, "N|all", read=parse_layers,
        help="Number of layers, counted from the last, on the first device with memory of its "
        "own; one more than the model has includes the output. Default: all.",
    ),
    "offload_kv": option(
        True, "True keeps the cache of a layer on the device of the layer, False in host memory.",
        "-nkvo --no-kv-offload", DEVICES, help="Keep the KV cache in host memory.",
    ),
    "place": option(
        None, "Mapping of globs over weight names to device names; the first match wins.",
        "--place", PLACEMENT, "GLOB=DEVICE",
        help="Device for weights whose names match, e.g. 'blk.*.ffn_*_exps=cpu'; repeatable, the "
        "first match wins.",
    ),
    "plan": option(
        None, "A plan file to follow, or its contents as a mapping.", "--plan", PLACEMENT, "FILE",
        help="A plan file of `weft explain --save`.",
    ),
    "fit": option(
        False, "True puts as many layers on devices as fit into their memory.", "--fit -fit",
        PLACEMENT, help="Offload as many layers as fit into the memory of each device.",
    ),
    "memory": option(
        None, "Mapping of device names to the bytes that plans may use there.", "--memory",
        PLACEMENT, "DEVICE=SIZE", help="Memory of a device that plans may use, e.g. opencl=6GiB.",
    ),
    "policy": option(
        "ggml",
        '"ggml" places nodes by the rules of ggml; "cost" takes the placement with the least '
        "time that `profile` predicts.", "--policy", PLACEMENT,
        help="Place by fixed rules, or by predicted time (cost; needs --speeds).",
    ),
    "op_offload": option(
        None,
        "Which devices take ops whose weights are in host memory, sending the weights for each "
        "batch: False, none; a number of tokens, products of that many and more; a mapping of "
        'devices (`"cuda:0"`), or of ops and devices (`"MUL_MAT_ID@cuda:*"`), to such values. True '
        "or None: from the number that `profile` or GGML_OP_OFFLOAD_MIN_BATCH says, else each "
        "device decides (a GPU: from 32).", "-nopo --no-op-offload", PLACEMENT,
        help="Let no device take ops whose weights are in host memory.",
    ),
    "profile": option(
        None,
        "Speeds of the devices: a `weft.schedule.Profile`, a file of `weft calibrate`, or the "
        "name of a profile that comes with weft.", "--speeds", PLACEMENT, "FILE",
        help="Speeds of the devices: a file of `weft calibrate`.",
    ),
    "repack": option(
        None, "True converts weights that only matmuls read to the layout that is fastest for the "
        "kernels; contexts of a model share them. False uses all weights in place, mapped from "
        "the file. None: True.", "--repack/--no-repack /-nr", ADVANCED,
        help="Convert weights on loading to the layout that is fastest for kernels, or use them "
        "as the file has them. Default: repack.",
    ),
    "expert_budget": option(
        None,
        'Bytes of memory, or a size such as "4G", for the experts of a mixture; the others stay '
        "in the file and are read when they are chosen. None: all experts are loaded.",
        "--expert-budget", PLACEMENT, "SIZE",
        help="Memory for the experts of a mixture, e.g. 4G; the others stay in the file and are "
        "read when they are chosen. Default: all are loaded.",
    ),
    "expert_policy": option(
        None,
        'With `expert_budget`, which expert gives way to another: "lru", the one used longest '
        'ago; "lfu", the one used least lately; "predict", as lfu, and probable experts of the '
        'next layer are read ahead; "auto", whichever does best with what was chosen lately, by '
        "simulation. None: auto.", "--expert-policy", ADVANCED,
        help="With --expert-budget, which expert gives way: the one used longest ago (lru), the "
        "one used least lately (lfu), or as lfu, reading ahead what the next layer probably "
        "needs (predict); auto simulates them with what was chosen lately, and takes the "
        "best.",
    ),
    "rewrites": option(
        None, "Names of the fusions to use; None: those that WEFT_REWRITES names, or all.",
        "--no-rewrite",
    ),
    "beside": option(
        (), "Plans (`ContextPlan`) of other contexts that will be in memory, too, such as those of "
        "models that draft.",
    ),
    "states": option(
        False, "True keeps what the output projection reads of every token (`Context.states`), for "
        "layers that draft; numbers of layers (1: the second) keep their inputs, side by side.",
    ),
}  # fmt: skip
"""Every key of `PlanArguments`, with default and meaning."""


LLM_OPTIONS: dict[str, Option] = {
    "n_ctx": option(
        None, "Size of the context in tokens, prompt and generated text together; None: the length "
        "that the model was trained for, at most 4096; 0: all of that length.", "-c --ctx-size",
        MODEL, "TOKENS",
        read=parse_tokens,
        help="Tokens of prompt and text together: 4096, 32k; 0: as many as the model was trained "
        "for. Default: the same, at most 4096.",
    ),
    "type": option(
        None,
        'Type that matrices are quantized to in memory, e.g. "q4_K_M"; None: as they are stored.',
        "--type", MODEL, "TYPE",
        help="Quantize the weights while loading: q4_K_M, q8_0, ... Default: as they are stored.",
    ),
    "context_shift": option(
        False,
        "True lets a text go on when the context is full: the older half of the tokens after the "
        "first `n_keep` is dropped; see `Context.drop_oldest`.",
        "--context-shift/--no-context-shift", MODEL,
        help="Go on when the context is full, dropping its older half.",
    ),
    "n_keep": option(
        0, "Number of first tokens that stay when the context is shifted, or -1 for the whole "
        "prompt; a BOS token always stays.", "--keep", MODEL,
        help="With --context-shift: number of first tokens that are not dropped; -1: the prompt.",
    ),
    "drafting": option(
        DraftOptions(),
        "How tokens are guessed, which are checked several at once: the same text, sooner where "
        "it repeats itself; None: not at all.",
    ),
    "chat_template": option(None, "Source of a Jinja template; None: the model's own template."),
    "mmproj": option(
        None, "File of the model's towers, for images and sounds in messages.", "--mmproj -mm",
        MODEL, "FILE", help="The model's towers for images and sound, a GGUF file.",
    ),
    "adapters": option(
        None,
        "LoRA adapters (GGUF files): a file, a list, or a mapping of names to files, each alone "
        "or as (file, scale).",
    ),
    "control_vectors": option(None, "Control vectors (GGUF files), given as adapters are."),
    "control_vector_layers": option(
        None, "The first and the last layer that they steer; None: all."
    ),
    "metadata": option(
        None, "Keys of the file's metadata that are read with other values, or further keys."
    ),
    "progress": option(
        None,
        "Function that is called with (bytes done, all bytes) while weights are repacked or sent "
        "to a device.",
    ),
    "eval_callback": option(
        None,
        "Function that is shown tensors as they are computed; see `Context.set_eval_callback`.",
    ),
    **PREFIX_OPTIONS,
    **{name: PLAN_OPTIONS[name] for name in LLMPlanArguments.__annotations__},
    "n_seq_max": option(
        None,
        "Maximum number of texts that are written at the same time. They share the cells of the "
        "cache. None: 16; for recurrent models 4, as each text has states of its own; with "
        "`swa_full=False` 1.",
    ),
}  # fmt: skip
"""Every option of `LLM`, with default and meaning."""

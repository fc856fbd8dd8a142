"""Options of other engines that weft lacks, and what to use instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

__all__ = ["foreign_option", "in_place_of"]

_PLACE = "--place 'GLOB=DEVICE' says which weights are on a device"
_EXPERTS = "--place 'blk.*.ffn_*_exps=cpu' keeps the weights of experts in host memory"
_DRAFT = "run, chat, serve and explain have a second model that drafts: -md MODEL"
_ADAPTER = "commands that load a model have --lora: run, chat, serve, bench, explain, ..."
_SEES = "weft run, chat and serve see images and hear sounds, with --mmproj FILE"
_HUB = "set it in the environment of huggingface_hub: HF_TOKEN, HF_HUB_OFFLINE=1, HF_HOME"
_LOG = "messages go to stderr: 2> FILE; weft serve has --log-file"
_CHAT = "the model's chat template says how messages are written"
_SCORES = "weft perplexity has it"
_TLS = "weft serve has it"
_ROUTES = "the server answers /v1, /health and /metrics"
_MEMORY = "--memory DEVICE=SIZE says how much memory plans may use, --fit offloads what fits"
_SPLIT = "--devices names the devices, --place and -ngl what is on each"
_TYPES = "weights are computed in the types of the file; weft quantize writes others"
_CONTEXT = "-c says how many tokens of context there are"
_BATCH = "-ub says how many tokens are computed at once, --parallel how many texts"
_QUANTIZE = "weft quantize has it"
_SPLIT_FILE = "the file is written whole"
_CACHE = "set HF_HOME in the environment"

_INSTEAD: dict[str, str] = {
    **dict.fromkeys(("-ot", "--override-tensor"), _PLACE),
    **dict.fromkeys(("-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"), _EXPERTS),
    **dict.fromkeys(
        ("-md", "--model-draft", "--spec-draft-model", "-hfd", "--hf-repo-draft", "--draft-p-min",
         "--spec-draft-p-min", "-ngld", "-devd", "-cd", "-td", "--threads-draft"), _DRAFT),
    **dict.fromkeys(("--lora", "--lora-scaled", "--enable-lora"), _ADAPTER),
    "--lora-modules": "weft serve has it; other commands have --lora NAME=FILE",
    **dict.fromkeys(("--control-vector", "--control-vector-scaled",
                     "--control-vector-layer-range"), _ADAPTER.replace("--lora", "it")),
    **dict.fromkeys(("-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"),
                    "--rope-scaling yarn --rope-scale N reaches further than the trained length"),
    **dict.fromkeys(("--rope-scaling", "--rope-scale", "--rope-freq-base", "--override-kv"),
                    "commands that load a model have it: run, chat, serve, bench, explain, ..."),
    "--hf-overrides": "--override-kv KEY=TYPE:VALUE and --rope-scaling change what the file says",
    **dict.fromkeys(("--mmproj", "-mm", "--image", "--audio", "--mmproj-url",
                     "--limit-mm-per-prompt"), _SEES),
    **dict.fromkeys(("-hff", "--hf-file"), "write the model as hf:OWNER/NAME/FILE.gguf"),
    **dict.fromkeys(("-mu", "--model-url"), "fetch the file first, or name it hf:OWNER/NAME"),
    **dict.fromkeys(("-hft", "--hf-token", "--offline"), _HUB),
    **dict.fromkeys(("--download-dir", "--models-dir"), _CACHE),
    **dict.fromkeys(("-rpc", "--rpc"), "devices are those of this machine"),
    **dict.fromkeys(("--log-file", "--log-prefix",
                     "--log-timestamps", "--log-colors"), _LOG),
    **dict.fromkeys(("--in-prefix", "--in-suffix", "--in-prefix-bos"), _CHAT),
    **dict.fromkeys(
        ("--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro", "--slot-save-path"),
        "--cache-dir DIR of weft run, chat and serve keeps texts for the next start"),
    **dict.fromkeys(("--hellaswag", "--winogrande", "--multiple-choice", "--kl-divergence",
                     "--ppl-stride", "--save-all-logits"), _SCORES),
    "--ppl-output-type": "weft perplexity prints the estimate after each chunk; --json is the last",
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file", "--ssl-keyfile", "--ssl-certfile"), _TLS),
    **dict.fromkeys(("--path", "--public-path", "--webui", "--props", "--slots"), _ROUTES),
    **dict.fromkeys(("--rerank", "--reranking"),
                    "a model with a classifier always ranks: weft rerank, POST /v1/rerank"),
    "--api-key-file": "weft serve has it",
    **dict.fromkeys(("--max-model-len", "--num-ctx"), _CONTEXT),
    **dict.fromkeys(("--gpu-memory-utilization", "--swap-space", "--cpu-offload-gb",
                     "--kv-cache-memory-bytes"), _MEMORY),
    **dict.fromkeys(("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp",
                     "--data-parallel-size", "-dp"), _SPLIT),
    **dict.fromkeys(("--dtype", "--quantization", "--load-format"), _TYPES),
    "--kv-cache-dtype": "-ctk and -ctv are the types of the cache",
    "--max-num-batched-tokens": _BATCH,
    **dict.fromkeys(("--tokenizer", "--tokenizer-mode"), "the tokenizer is the model file's"),
    "--keepalive": "a model is loaded as long as the command runs",
    "--format": "--json-schema '{}' allows any JSON, a schema what it describes",
    **dict.fromkeys(("--think", "--reasoning-budget"),
                    "the model's chat template says whether it thinks first"),
    **dict.fromkeys(
        ("--imatrix", "--include-weights", "--exclude-weights", "--output-tensor-type",
         "--token-embedding-type", "--tensor-type", "--leave-output-tensor", "--prune-layers"),
        _QUANTIZE),
    "--keep-split": _SPLIT_FILE,
}  # fmt: skip
"""What to do instead, by option."""


def in_place_of(option: str) -> str:
    """Says what to use instead of `option`; empty if the option is unknown."""
    return _INSTEAD.get(option, "")


def foreign_option(args: Sequence[str], known: Collection[str], take: Collection[str]) -> str:
    """The first option of other engines in a line, as a whole word: `-hff` is not `-h -f f`.

    `known` are the options of the command, and `take` those of them that take a value."""
    return next((name for name in _names(args, take) if name in _INSTEAD and name not in known), "")


def _names(args: Sequence[str], take: Collection[str]) -> Iterator[str]:
    value = False
    for arg in args:
        if arg == "--":
            return
        if not value and arg.startswith("-"):
            yield arg.partition("=")[0]
        value = not value and arg in take

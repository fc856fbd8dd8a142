"""Options of other engines that weft lacks, and what to use instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

_PLACE = "--place 'GLOB=DEVICE' says which weights are on a device"
_EXPERTS = "--place 'blk.*.ffn_*_exps=cpu' keeps the weights of experts in host memory"
_DRAFT = "run, chat, serve and explain have a second model that drafts: -md MODEL"
_ADAPTER = "commands that load a model have --lora: run, chat, serve, bench, explain, ..."
_SEES = "weft run, chat and serve see images and hear sounds, with --mmproj FILE"
_HUB = "set it in the environment of huggingface_hub: HF_TOKEN, HF_HUB_OFFLINE=1, HF_HOME"
_LOG = "messages go to stderr: 2> FILE; weft serve has --log-file"
_CHAT = "the model's chat template says how messages are written; weft chat has --chat-template"
_SCORES = "weft perplexity has it"
_TLS = "weft serve has it"
_ROUTES = "the server's page is its own, at /"
_TALKS = "weft chat and weft serve have it; weft run continues a text as it is"
_LOOKUP = "weft drafts from the texts of the cache by itself; --draft-model MODEL takes a model"
_MEMORY = "--memory DEVICE=SIZE says how much memory plans may use, --fit offloads what fits"
_SPLIT = "--devices names the devices, --place and -ngl what is on each"
_TYPES = "weights are computed in the types of the file; --type quantizes them while loading"
_CONTEXT = "-c says how many tokens of context there are"
_BATCH = "-ub says how many tokens are computed at once, --parallel how many texts"
_SERVERS = (
    "weft bench -npl 1,8 measures several texts at a time; benchmarks/serve.py of weft's "
    "repository measures a server"
)
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
    **dict.fromkeys(("-rpc", "--rpc"),
                    "weft worker lends the devices of a machine, --machines HOST:PORT takes them"),
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
    **dict.fromkeys(("--path", "--public-path"), _ROUTES),
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
    "--keepalive": "a model is loaded as long as the command runs; weft serve has --keep-alive",
    "--sleep-idle-seconds": "--models FOLDER with --keep-alive TIME unloads models that rest",
    "--format": "--json-schema '{}' allows any JSON, a schema what it describes",
    **dict.fromkeys(
        ("--think", "--no-think", "--hidethinking", "--hide-thinking", "--reasoning", "-rea",
         "--reasoning-budget", "--reasoning-format", "--chat-template", "--chat-template-file",
         "--chat-template-kwargs"), _TALKS),
    **dict.fromkeys(("--system-prompt-file", "-sysf"), _TALKS),
    **dict.fromkeys(("-mli", "--multiline-input"),
                    'in weft chat a line that ends with \\ goes on, and """ is around long texts'),
    **dict.fromkeys(("-ptc", "--print-token-count"), "/stats of weft chat says it"),
    **dict.fromkeys(("-npl", "-npp", "-ntg"), "weft bench has it"),
    **dict.fromkeys(("--num-prompts", "--max-concurrency", "--request-rate"), _SERVERS),
    **dict.fromkeys(("-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"), _LOOKUP),
    **dict.fromkeys(("-cl", "--cache-list"), "weft list shows what is downloaded"),
    "--embd-separator": "each argument is a text, and with -f each line",
    "--attention": "the model's architecture says which tokens see which",
    **dict.fromkeys(("--pooling",), "weft embed and weft serve have it"),
    "--task": "weft embed, weft rerank and weft serve take what a model is for from its file",
    "--runner": "weft embed, weft rerank and weft serve take what a model is for from its file",
    "--generation-config": "--temp, --top-k, --top-p and the others of weft serve are its defaults",
    "--override-generation-config":
        "--temp, --top-k, --top-p and the others of weft serve are its defaults",
    "--context-shift": "weft run and weft chat have it; a served text ends with its context",
    **dict.fromkeys(("--num-predict",), "-n says how many tokens are generated at most"),
    "--show-timings": "-v of weft chat says them",
    "--api-prefix": "--root-path of weft serve is the path below which a proxy has it",
    "--root-path": "weft serve has it",
    "--uds": "weft serve has it",
    **dict.fromkeys(
        ("--imatrix", "--include-weights", "--exclude-weights", "--output-tensor-type",
         "--token-embedding-type", "--tensor-type", "--leave-output-tensor", "--prune-layers"),
        _QUANTIZE),
    "--merge": "write weft gguf merge IN OUT, where IN is the first of the files",
    "--keep-split": _SPLIT_FILE,
}  # fmt: skip
"""What to do instead, by option."""


_AS_USUAL: dict[str, tuple[str, ...]] = {
    "--dtype": ("auto",),
    "--load-format": ("auto",),
    "--task": ("auto",),
    "--tokenizer-mode": ("auto",),
    "--generation-config": ("auto",),
    **dict.fromkeys(("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp",
                     "--data-parallel-size", "-dp"), ("1",)),
}  # fmt: skip
"""Values of such options that ask for what weft does anyway."""


def without_usual(args: Sequence[str], known: Collection[str]) -> list[str]:
    """A line without options of other engines, unless they are `known`, whose value asks for what
    weft does anyway."""
    kept: list[str] = []
    words = iter(args)
    for arg in words:
        name, sign, value = arg.partition("=")
        if arg == "--":
            return [*kept, arg, *words]
        if name in known or name not in _AS_USUAL:
            kept.append(arg)
            continue
        if not sign:
            value = next(words, "")
        if value not in _AS_USUAL[name]:
            kept += [arg] if sign or not value else [arg, value]
    return kept


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


_FETCHED = "weft pull hf:OWNER/NAME[:QUANT] does that"
_FILES = "models are files: weft list shows those that were downloaded, weft rm removes one"
_SERVED = "weft serve MODEL, or --models FOLDER, runs until Ctrl-C; weft ps shows what is loaded"
_ELSEWHERE = {
    **dict.fromkeys(("fetch", "download"), _FETCHED),
    **dict.fromkeys(("show", "gguf-hash", "info"), "weft inspect shows what a file holds"),
    **dict.fromkeys(("ls", "remove", "delete", "cp", "push"), _FILES),
    "launch": _SERVED,
    **dict.fromkeys(
        ("signin", "signout", "login"), "models are public, or need HF_TOKEN in the environment"
    ),
    **dict.fromkeys(("llama-completion", "llama-run", "main"), "weft run continues a text"),
    **dict.fromkeys(("generate", "complete", "simple"), "weft run continues a text"),
    **dict.fromkeys(("cli", "completion-cli"), "weft run continues a text, weft chat talks"),
    **dict.fromkeys(("server", "start", "api"), "weft serve is one"),
    "convert-hf-to-gguf": "weft convert does that",
    **dict.fromkeys(("gguf-split", "gguf-merge"), "weft gguf split and weft gguf merge do that"),
    **dict.fromkeys(("batched-bench", "parallel"), "weft bench -npl 1,8 -npp N -ntg N does that"),
    "rpc-server": "weft worker lends the devices of this machine",
    "export-lora": "weft convert MODEL OUT --merge ADAPTER does that",
    "merge": "weft convert MODEL OUT --merge ADAPTER adds an adapter, weft gguf merge joins parts",
    "convert-lora-to-gguf": "weft convert FOLDER OUT --lora does that",
    "mtmd-cli": "weft run and weft chat see images and hear sounds, with --mmproj FILE",
    **{
        name: f"weft {name} does that"
        for name in ("bench", "imatrix", "quantize", "perplexity", "tokenize")
    },
    "embedding": "weft embed does that",
}
"""Commands of other engines, and what to use here instead."""


def in_place_of_command(name: str) -> str:
    """What there is in place of a command of other engines; empty for an unknown name."""
    return _ELSEWHERE.get(name) or _ELSEWHERE.get(name.removeprefix("llama-"), "")

"""Opens a model in one order: files, config, tokenizer, towers and models that draft; then sizes,
plan and context. `LLM`, the server, its planned models and `weft explain` open models here.

    opening = Opening("model.gguf")
    context = opening.load(n_ctx=4096).context
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from weft.errors import ArgumentError, ContextError, FormatError, warn
from weft.execute import Progress
from weft.frontends.gguf import GGUFFile
from weft.frontends.models import open_model
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.cache.kv_cache import KVCache
from weft.llm.chat.template import ChatTemplate
from weft.llm.compute.context import Context
from weft.llm.compute.embed import MOST, sequences_for
from weft.llm.drafting.drafting import Drafter, Drafting, why_no_drafts
from weft.llm.drafting.next_tokens import BesideCache, Blocks, EagleTokens, NextTokens
from weft.llm.drafting.ngram import NgramDrafter
from weft.llm.drafting.second_model import SecondModel
from weft.llm.hub import local_path
from weft.llm.model import Model
from weft.llm.planning.draft_options import DraftOptions, rows_needed
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare
from weft.llm.planning.stage_report import token_bytes
from weft.llm.scaled_files import ScaledFiles
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.options import path_text
from weft.records import dataclass
from weft.schedule.collector import collector_paused

if TYPE_CHECKING:
    from weft.llm.adapter_files import AdapterFiles
    from weft.llm.multimodal import Senses, Towers

DEFAULT_N_CTX = 4096
"""Default number of cells of the cache; fewer if the model was trained for less."""
DEFAULT_N_SEQS = 16
"""Default number of texts that are written at the same time; fewer for a recurrent model."""
PADDED = 256
"""Maximum difference of the sizes of two equal vocabularies: some files are padded."""


class ModelArguments(TypedDict, total=False):
    """The arguments that choose the files of a model and say how they are read; see `LLM`."""

    type: str | None
    mmproj: str | os.PathLike[str] | None
    adapters: AdapterFiles | None
    control_vectors: ScaledFiles | None
    control_vector_layers: Sequence[int] | None
    metadata: Mapping[str, object] | None
    drafting: DraftOptions | None
    progress: Progress | None


def take_model_arguments(arguments: dict[str, Any]) -> ModelArguments:
    """Removes the arguments of `Opening` from `arguments` and returns them."""
    names = [name for name in ModelArguments.__annotations__ if name in arguments]
    return cast("ModelArguments", {name: arguments.pop(name) for name in names})


class Opening:
    """A model with its files open. No weight is read before `load` is called."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        whole: bool = True,
        planned: bool = False,
        **files: Unpack[ModelArguments],
    ) -> None:
        """`path` is a GGUF file, a folder or a name; the other files are as in `LLM`.

        With `whole` False the beginning of a GGUF file is enough, and with `planned` no matrix is
        quantized to `type`; such a model can be planned but not loaded.

        Raises ContextError for a model that cannot draft, and FormatError for a file that is
        missing, damaged or of an unknown kind."""
        mmproj = files.get("mmproj")
        self.progress = files.get("progress")
        file = open_model(
            local_path(path), files.get("type"), progress=self.progress, whole=whole,
            planned=planned, metadata=files.get("metadata"),
        )  # fmt: skip
        self.towers = None if mmproj is None else _towers(path_text(mmproj, "mmproj"))
        self.model = Model(
            file, files.get("adapters"), files.get("control_vectors"),
            files.get("control_vector_layers"),
        )  # fmt: skip
        if self.model.config.drafts is not None:
            raise FormatError(
                f"{file.path}: a model of the architecture {file.architecture!r} drafts tokens for "
                "another model; give that one, and this file as -md (DraftOptions(model=))"
            )
        self.model.towers = () if self.towers is None else self.towers.all
        self.drafts = DraftModels(self.model, files.get("drafting", DraftOptions()))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file. Raises TokenizerError for an unknown one."""
        return Tokenizer.from_gguf(self.model.file)

    def load(self, **options: Any) -> Loaded:
        """Loads the context that writes texts, with drafters and towers. `options` are the options
        of `Context`; missing sizes are the usual ones."""
        options = self._sized(options)
        tokenizer = self.tokenizer  # an unknown one is an error before weights are read
        context = Context(self.model, progress=self.progress, **options)
        drafting = self.drafts.drafting(context, self.progress)
        senses = None if self.towers is None else _senses(self.towers, context, tokenizer)
        return Loaded(self, context, drafting, senses)

    def plans(self, *, must_fit: bool = True, **options: Any) -> list[ContextPlan]:
        """The plans of the contexts of models that draft, and last the plan of the context that
        `load` would load. Without `must_fit` that plan may need more memory than there is."""
        options = self._sized(options)
        plan = prepare(self.model, must_fit=must_fit, **options)
        return [*options.get("beside", ()), plan]

    def _sized(self, options: dict[str, Any]) -> dict[str, Any]:
        """`options` with the sizes that are missing, rows for drafts, and memory for the models
        that draft. A plan file has all sizes."""
        config, drafting = self.model.config, self.drafts.options
        n_seqs = options.get("n_seq_max")
        if options.get("plan") is None:
            if options.get("n_ctx") is None:
                options["n_ctx"] = min(config.n_ctx_train, DEFAULT_N_CTX)
            options["n_ctx"] = options["n_ctx"] or config.n_ctx_train
            if n_seqs is None:
                n_seqs = options["n_seq_max"] = self._most_sequences(options)
            if self.model.writes:
                options.setdefault("n_outputs", rows_needed(n_seqs, drafting, config))
        n_ctx = options.get("n_ctx")
        if options.get("n_ubatch") is None and (not config.causal or config.n_encoder):
            options["n_ubatch"] = n_ctx  # every token attends to the whole text
        if drafting is not None and n_ctx is not None and self.model.writes:
            names = ("type_k", "type_v")
            types = CacheTypes(**{n: options[n] for n in names if options.get(n)})
            options["beside"] = self.drafts.plans(n_ctx, n_seqs or 1, types)
            options["states"] = self.drafts.states
        return options

    def _most_sequences(self, options: dict[str, Any]) -> int:
        """The default of `n_seq_max`. Sequences share the cells of the cache, so that they take
        memory for recurrent states only."""
        if not self.model.writes:
            return sequences_for(self.model.config, MOST)
        if options.get("swa_full") is False:
            return 1  # each sequence would have a window of cells of its own
        sizes = [options.get(name) for name in ("n_ctx", "n_batch", "n_ubatch")]
        known = [n for n in sizes if isinstance(n, int) and n > 0]
        return sequences_for(self.model.config, min([DEFAULT_N_SEQS, *known]))

    def template(self, source: str | ChatTemplate | None = None) -> ChatTemplate:
        """The chat template of the file, or the one of `source`; see `require_source`."""
        require_source(source)
        if isinstance(source, ChatTemplate):
            return source
        own = ChatTemplate.from_gguf(self.model.file, self.tokenizer)
        return own if source is None else ChatTemplate(source, bos=own.bos, eos=own.eos)


def require_source(source: object) -> None:
    """Raises ArgumentError for a chat template that is empty or of another type."""
    if not isinstance(source, ChatTemplate | str | None):
        raise ArgumentError(
            f"is {source!r:.60}; it must be the source of a Jinja template, a text",
            argument="chat_template",
        )
    if isinstance(source, str) and not source.strip():
        raise ArgumentError(
            "is empty; give the source of a Jinja template, or leave it out for the model's own",
            argument="chat_template",
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with the context that writes its texts."""

    opening: Opening
    context: Context
    drafting: Drafting | None
    """The drafters of the texts; None: there are none."""
    senses: Senses | None
    """The towers beside the context; None: there are none."""

    @property
    def draft_contexts(self) -> dict[str, Context]:
        """The contexts of models that draft, by what they are."""
        contexts: dict[str, Context] = {}
        for drafter in () if self.drafting is None else self.drafting.drafters:
            if isinstance(drafter, SecondModel | NextTokens | BesideCache):
                contexts[drafter.name] = drafter.context
            if isinstance(drafter, NextTokens):
                for i, cache in enumerate(drafter.further):
                    contexts[f"{drafter.name} {i + 2}"] = cache.context
        return contexts


def _towers(path: str | os.PathLike[str]) -> Towers:
    from weft.llm.multimodal import open_towers  # most models have none

    return open_towers(path)


def _senses(towers: Towers, context: Context, tokenizer: Tokenizer) -> Senses:
    from weft.llm.multimodal import Senses

    return Senses(towers, context, tokenizer)


@collector_paused()
def load_model(path: str | os.PathLike[str], options: dict[str, Any]) -> Loaded:
    """Opens and loads a model with the options of `Opening` and of `Opening.load`."""
    return Opening(path, **take_model_arguments(options)).load(**options)


class DraftModels:
    """The models that draft for another one."""

    def __init__(self, model: Model, options: DraftOptions | None) -> None:
        """Opens the models of `options` that draft for `model`.

        Raises ContextError for one that cannot draft, and the errors of `Model`."""
        self.options = options
        self.model = model
        """The model for which they draft."""
        self.second: Model | None = None
        """The model of `DraftOptions.model`."""
        self.layers: list[Model] = []
        """Layers of the same file."""
        if options is None or not model.writes:
            return
        if model.config.diffusion is not None:
            if options.model is not None or options.layers:
                raise ContextError(
                    f"{model.file.path} writes in any order (by diffusion), so that nothing can "
                    "draft for it; leave out the model or the layers that draft"
                )
            self.options = None
            return
        if options.model is not None:
            self.second = second = Model.open(options.model)
            config = second.config
            reads = config.drafts is not None
            if not second.writes or config.n_encoder or not (config.causal or reads):
                raise ContextError(f"{second.file.path} cannot draft: it does not continue texts")
            if not reads or "tokenizer.ggml.tokens" in second.file.metadata:
                _require_same_tokens(model.file, second.file)
            if reads:
                self.second = second.drafting_for(model)
        if options.layers:
            if self.second is not None and self.second.config.drafts is not None:
                raise ContextError(
                    f"{self.second.file.path} and layers of the model both read its states, and "
                    "one of them can; leave -md or mtp (DraftOptions(layers=True)) out"
                )
            self.layers = model.next_layers()

    @property
    def states(self) -> bool | tuple[int, ...]:
        """The option `states` of the context of the model."""
        for model in (self.second, *self.layers):
            if model is not None and model.config.drafts is not None:
                return model.config.drafts.layers or True
        return False

    def plans(self, n_ctx: int, n_seqs: int, types: CacheTypes | None = None) -> list[ContextPlan]:
        """The plans of their contexts, for `n_seqs` texts that share `n_ctx` cells of the types
        `types`."""
        cache, drafts = None, self.second.config.drafts if self.second else None
        if drafts is not None and drafts.shares_cache:
            of = (types or CacheTypes())._asdict()
            cache = KVCache(self.model.config, n_ctx, n_seq_max=n_seqs, allocate=False, **of)
        return [prepare(model, **sizes) for model, sizes in self._contexts(n_ctx, n_seqs, cache)]

    def drafting(self, context: Context, progress: Progress | None = None) -> Drafting | None:
        """Loads the models and makes the drafters for the texts of `context`; None: there are none.

        Where drafts could not be checked, no model is loaded for them, which is a warning."""
        options, n = self.options, context.cache.n_seq_max
        if options is None:
            return None
        drafters: list[Drafter] = [NgramDrafter()] if options.ngram else []
        why = why_no_drafts(context) if self.second or self.layers else ""
        if self.states and context.plan.options.states != self.states:
            what = "layers that draft need" if self.layers else "the draft model needs"
            why = why or (f"{what} a context with states={self.states}, made without a plan file")
        if why:
            warn(f"no model drafts: {why}")
        else:
            # the same threads, which take turns
            shared: dict[str, Any] = {
                "devices": context.plan.backends, "machines": context.machines,
                "progress": progress,
            }  # fmt: skip
            moved = token_bytes(context.plan)
            own: list[Context] = []
            for model, sizes in self._contexts(context.n_ctx, n, context.cache):
                one = Context(model, **shared | sizes)
                if model.file is self.model.file:
                    own.append(one)
                else:
                    share = token_bytes(one.plan) / moved
                    drafters.append(_kind_of(model)(one, n, options.p_min, share))
            if own:
                share = sum(token_bytes(one.plan) for one in own) / len(own) / moved
                drafters.append(NextTokens(own[0], n, options.p_min, share, own[1:]))
        if not drafters:
            return None
        n_vocab = context.model.config.n_vocab
        drafting = Drafting(drafters, n_vocab, most=options.most, least=max(options.least, 1))
        for reader in drafting.unasked:
            warn(
                f"the {reader.name} is not asked for guesses: for a token it reads "
                f"{reader.share:.2f} of the bytes that the model reads, which takes too long to "
                "pay; one that reads at most half as many can pay"
            )
        return drafting

    def _contexts(
        self, n_ctx: int, n_seqs: int, cache: KVCache | None
    ) -> list[tuple[Model, dict[str, Any]]]:
        """Each model with the arguments of its context. `cache` is the cache of the model, for one
        that shares it."""
        contexts: list[tuple[Model, dict[str, Any]]] = []
        options = self.options
        for model in (self.second, *self.layers):
            if model is None or options is None:
                continue
            drafts = model.config.drafts
            twice = model.config.recurrent is not None  # see `OwnCache`
            sizes: dict[str, Any] = {
                "n_ctx": n_ctx, "n_seq_max": 2 * n_seqs if twice else n_seqs,
                "n_outputs": max(drafts.block, 1) if drafts else 1,
            }  # fmt: skip
            if drafts is not None and drafts.n_state:
                sizes["states"] = True
            if drafts is not None and drafts.shares_cache:
                assert cache is not None
                model = model.reading(cache)
            elif model is self.second:
                sizes |= options.model_options
            contexts.append((model, sizes))
        return contexts


def _kind_of(model: Model) -> type[SecondModel | NextTokens | BesideCache]:
    """How a model of another file drafts."""
    drafts = model.config.drafts
    if drafts is None:
        return SecondModel
    if drafts.shares_cache:
        return BesideCache
    if drafts.block:
        return Blocks
    return EagleTokens


def _require_same_tokens(target: GGUFFile, draft: GGUFFile) -> None:
    """Raises ContextError, which names both files, unless the ids of both have the same texts."""
    key = "tokenizer.ggml.tokens"
    own, other = (f.metadata.get_bytes_list(key, []) for f in (target, draft))
    n, start = min(len(own), len(other)), f"{draft.path} cannot draft for {target.path}: "
    advice = "; a model that drafts has the same vocabulary"
    if max(len(own), len(other)) > n + PADDED or not n:
        raise ContextError(f"{start}it has {len(other)} tokens, not {len(own)}{advice}")
    if own[:n] != other[:n]:
        id_ = next(i for i in range(n) if own[i] != other[i])
        texts = (t[id_].decode(errors="replace") for t in (other, own))
        raise ContextError("{}token {} is {!r}, not {!r}{}".format(start, id_, *texts, advice))

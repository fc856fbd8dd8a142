"""Gemma 4's assistants: the logits of transformers, and texts with their drafts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.drafted_texts import SAMPLING, request, written
from tests.llm.hf_folders import BOTH_PARTS, IDS, SHAPE, SHARED_KV, TIED, made_model, save_tokenizer
from tests.llm.test_drafters import with_drafts
from weft.errors import ContextError, FormatError
from weft.llm import LLM, Batch, Context, DraftOptions, Model
from weft.llm.opening import DraftModels

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = SHAPE | TIED | SHARED_KV | {"vocab_size": 380, "vocab_size_per_layer_input": 380,
                                   "global_head_dim": 24, "rope_parameters": BOTH_PARTS,
                                   "num_key_value_heads": 2}  # fmt: skip
OWN = {
    "vocab_size": 380, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 6, "rope_parameters": BOTH_PARTS, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 3, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "n_threads": 1}


def assistant(folder: Path, **changes: Any) -> Any:
    """Saves an assistant of transformers; returns it."""
    text = transformers.Gemma4TextConfig(**copy.deepcopy(OWN | changes))
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32)
    torch.manual_seed(2)
    model = transformers.Gemma4AssistantForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * (1.5 / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.2))
            if p.dim() == 1:
                p.add_(1)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any, Any]:
    """The folders of a model and its assistant, and both in transformers."""
    folder = tmp_path_factory.mktemp("gemma4")
    target = made_model("Gemma4Text", "ForCausalLM", TEXT)
    target.save_pretrained(folder / "target")
    save_tokenizer("pieces", folder / "target")
    return folder / "target", folder / "assistant", target, assistant(folder / "assistant")


def test_the_same_logits(both: tuple[Path, Path, Any, Any]) -> None:
    """For each of several guesses, from the states of the target and then from its own."""
    path, own, target, drafter = both
    model = Model.open(path)
    context = Context(model, 64, states=True, **EXACT)
    context.decode(IDS)
    layer = Model.open(own).drafting_for(model).reading(context.cache)
    guesses = Context(layer, 64, states=True, **EXACT)
    with torch.no_grad():
        out = target(torch.tensor([IDS]), output_hidden_states=True, return_shared_kv_states=True)
        state, token = out.hidden_states[-1][:, -1:], 90
        at, kv = torch.tensor([[len(IDS)]]), dict(out.shared_kv_states)
        # the next token sees the last of them, as in a cache for the window
        kv["sliding_attention"] = tuple(t[:, :, -5:] for t in kv["sliding_attention"])
        own_state = context.states
        assert own_state is not None
        np.testing.assert_allclose(own_state[-1:], state[0], atol=1e-4)
        for _ in range(3):
            embedding = target.get_input_embeddings()(torch.tensor([[token]]))
            want = drafter(
                inputs_embeds=torch.cat([embedding, state], -1), position_ids=at,
                attention_mask=torch.ones((1, len(IDS)), dtype=torch.long),
                shared_kv_states=kv, use_cache=False,
            )  # fmt: skip
            got = guesses.decode(Batch([token], [len(IDS)], states=own_state[-1:]))
            np.testing.assert_allclose(got[0], want.logits[0, -1], atol=2e-4, rtol=2e-4)
            state, own_state = want.last_hidden_state, guesses.states
            assert own_state is not None
            np.testing.assert_allclose(own_state, state[0], atol=2e-4, rtol=2e-4)
            token = int(got[0].argmax())
    assert context.cache.n_used == len(IDS)


def test_the_same_texts(both: tuple[Path, Path, Any, Any]) -> None:
    path, own, _, _ = both
    prompts = [IDS[:9], [*IDS[:9], 7, 8], IDS[3:12], [5]]
    requests = [request(p, SAMPLING[i], 24, ignore_eos=True) for i, p in enumerate(prompts)]
    one = [request(IDS[:9], n=70, n_keep=3, ignore_eos=True)]
    for given, sizes in (
        (requests, {"n_seq_max": 2, "n_ctx": 256}),
        (one, {"n_ctx": 40, "n_ubatch": 40}),
    ):
        plain, _ = written(path, given, None, **sizes)
        models = DraftModels(Model.open(path), DraftOptions(ngram=False, model=own, p_min=0))
        drafts, text = with_drafts(models, path, given, sizes)
        assert text == plain and drafts.n_drafted > 40 and not drafts._sources[0].failed


def test_what_differs_is_named(both: tuple[Path, Path, Any, Any], tmp_path: Path) -> None:
    target = Model.open(both[0])
    for changes, what in (
        ({"sliding_window": 4}, "its window is 4, and the model's 6"),
        ({"global_head_dim": 16}, "4 heads of 16 elements, and layer 2 of the model keys of 2"),
    ):
        assistant(tmp_path, **changes)
        with pytest.raises(ContextError, match=what):
            DraftModels(target, DraftOptions(model=tmp_path))
    with pytest.raises(FormatError, match="'gemma4-assistant' drafts tokens for another model"):
        LLM(both[1])


def test_llm(both: tuple[Path, Path, Any, Any]) -> None:
    """Its memory is that of its weights and graphs: the cache is the model's."""
    texts = []
    for options in (None, DraftOptions(model=both[1], p_min=0)):
        with LLM(both[0], n_ctx=64, n_threads=1, drafting=options) as llm:
            texts.append(llm.generate("the abc", max_tokens=20, temperature=0, ignore_eos=True))
            if options is not None:
                own = llm.draft_contexts["draft model"].plan
                assert "draft model" in llm.explain() and sum(n.cache for n in own.needs()) == 0
    assert texts[0] == texts[1]

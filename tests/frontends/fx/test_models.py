"""Models of transformers with random weights: whole, with dynamic lengths, with a static cache."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import weft  # noqa: E402
from tests.frontends.fx.exported import check, ops_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}


class Output(torch.nn.Module):
    """One field of what a model returns."""

    def __init__(self, model: torch.nn.Module, field: str, **options: Any) -> None:
        super().__init__()
        self.model, self.field, self.options = model.eval(), field, options

    def forward(self, *args: Any) -> Any:
        """Calls the model."""
        return getattr(self.model(*args, **self.options), self.field)


def llama(**options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SMALL | options, num_key_value_heads=2, max_position_embeddings=64
    )
    return Output(transformers.LlamaForCausalLM(config), "logits", use_cache=False)


def tokens(n: int, batch: int = 1) -> Any:
    return torch.randint(0, 64, (batch, n), generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_llama(attention: str) -> None:
    ops = ops_of(
        check(llama(attn_implementation=attention, num_hidden_layers=2), tokens(7)).converted
    )
    assert ops["RMS_NORM"] == 5 and ops["ROPE"] == 4 and ops["GLU"] == 2
    assert ops["FLASH_ATTN_EXT"] == (2 if attention == "sdpa" else 0)


def test_llama_of_any_length() -> None:
    model = llama()
    n = torch.export.Dim("n", min=2, max=32)
    f = weft.from_torch(model, (tokens(7),), dynamic_shapes=(({1: n},),))
    for length in (2, 9, 32):
        torch.testing.assert_close(f(tokens(length)), model(tokens(length)), rtol=1e-4, atol=1e-5)


def test_bert() -> None:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    ids = tokens(7, 2)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    check(Output(model, "last_hidden_state"), ids, mask)


def test_vit() -> None:
    torch.manual_seed(0)
    sizes = {k: v for k, v in SMALL.items() if k != "vocab_size"}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    check(Output(transformers.ViTModel(config), "last_hidden_state"), torch.randn(1, 3, 32, 32))


def test_qwen3_with_a_static_cache() -> None:
    executorch = pytest.importorskip("transformers.integrations.executorch")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        **SMALL, num_key_value_heads=2, head_dim=8, max_position_embeddings=64
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=16,
        cache_config={"batch_size": 1, "max_cache_len": 16},
    )
    wrapped = executorch.TorchExportableModuleForDecoderOnlyLM(
        model, batch_size=1, max_cache_len=16
    )
    f = weft.from_torch(wrapped.export(input_ids=tokens(1), cache_position=torch.tensor([0])))
    assert ops_of(f.converted)["SET_ROWS"] == 2
    text = tokens(6)
    expected = model(text, use_cache=False).logits
    for i in range(6):
        logits = f(input_ids=text[:, i : i + 1], cache_position=torch.tensor([i]))
        torch.testing.assert_close(logits[:, -1], expected[:, i], rtol=1e-4, atol=1e-5)


def test_a_mixture_of_experts() -> None:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    model = Output(transformers.MixtralForCausalLM(config), "logits", use_cache=False)
    ops = ops_of(check(model, tokens(7)).converted)
    assert ops["MUL_MAT_ID"] == 2

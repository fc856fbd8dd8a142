"""Quantized checkpoints: the values that their formats stand for, and the blocks that hold them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import quants
from weft.errors import FormatError
from weft.frontends.hf.checkpoints import readable
from weft.frontends.hf.config import Config
from weft.frontends.hf.folder import understood
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import Values

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file
Array = np.ndarray[Any, Any]

RANDOM = np.random.default_rng(3)
N_IN, N_OUT, EACH = 64, 24, 32
N_GROUP = N_IN // EACH


def read(folder: Path, tensors: dict[str, Any], **config: Any) -> dict[str, Values]:
    """The tensors of a folder whose config.json says `config`."""
    save_file(
        {name: t.clone().contiguous() for name, t in tensors.items()}, folder / "model.safetensors"
    )
    return readable(Config(folder, {"num_hidden_layers": 1, **config}), open_shards(folder))


def values(folder: Path, tensors: dict[str, Any], **how: object) -> dict[str, Array]:
    """The values of a folder that is quantized so, as float32. Blocks must stand for the same."""
    found = read(folder, tensors, quantization_config=how)
    for v in found.values():
        if v.packed is not None:
            kept = quants.decode(v.packed(), v.kind) * (1 if v.factor is None else v.factor)
            np.testing.assert_array_equal(kept, v.load())
    return {name: v.load() for name, v in found.items()}


def kind(folder: Path, tensors: dict[str, Any], **how: object) -> str:
    """The type of the one tensor of the folder, once its blocks have been compared."""
    values(folder, tensors, **how)
    (found,) = read(folder, tensors, quantization_config=how).values()
    return found.kind


def stream(codes: Array, bits: int, axis: int, whole: bool = False) -> Any:
    """Codes packed along `axis` into int32, bit by bit from the lowest on; with `whole` each word
    has whole codes only."""
    rows = np.moveaxis(codes, axis, -1)
    per = 32 // bits
    packed = []
    for row in rows.reshape(-1, rows.shape[-1]):
        number, at = 0, 0
        for i, code in enumerate(row.tolist()):
            at = 32 * (i // per) + bits * (i % per) if whole else bits * i
            number |= code << at
        n_words = -(-(at + bits) // 32)
        packed.append([number >> 32 * i & 0xFFFFFFFF for i in range(n_words)])
    words = np.array(packed, np.uint32).reshape(*rows.shape[:-1], -1)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32))


def grid(bits: int = 4, low: int = 1) -> tuple[Array, Array, Array]:
    """Codes [out, in], zeros [out, groups] and scales f16 [out, groups]."""
    top = 1 << bits
    codes = RANDOM.integers(0, top, (N_OUT, N_IN))
    zeros = RANDOM.integers(low, top, (N_OUT, N_GROUP))
    return codes, zeros, RANDOM.random((N_OUT, N_GROUP)).astype(np.float16)


def meant(codes: Array, zeros: Any, scales: Array, group: Any = None) -> Array:
    """(code - zero) * scale for each element, by the definition."""
    of = (
        np.arange(codes.shape[1]) // (codes.shape[1] // scales.shape[1]) if group is None else group
    )
    zeros = np.broadcast_to(zeros, scales.shape)
    out = np.empty(codes.shape, np.float32)
    for i in range(codes.shape[0]):
        for j in range(codes.shape[1]):
            out[i, j] = (int(codes[i, j]) - int(zeros[i, of[j]])) * np.float32(scales[i, of[j]])
    return out


F8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("form", F8)
@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8", "modelopt", "compressed-tensors"])
@pytest.mark.parametrize("scales", [(), (1,), (4,), (4, 1), (2, 3)])
def test_fp8(tmp_path: Path, form: str, method: str, scales: tuple[int, ...]) -> None:
    weight, scale = torch.randn(4, 6).to(F8[form]), torch.rand(scales)
    end = "weight_scale_inv" if method == "fp8" else "weight_scale"
    tensors = {"a.weight": weight, f"a.{end}": scale, "a.input_scale": torch.ones(1),
               "a.activation_scale": torch.ones(1)}  # fmt: skip
    how = {"format": "float-quantized", "config_groups": {"g": {"weights": {"num_bits": 8}}}}
    got = values(tmp_path, tensors, quant_method=method, **how)
    whole = scale.repeat_interleave(2, 0).repeat_interleave(2, 1) if scales == (2, 3) else scale
    whole = whole[:, None] if scales == (4,) else whole
    assert list(got) == ["a.weight"]
    np.testing.assert_array_equal(got["a.weight"], (weight.float() * whole).numpy())


def test_fp8_blocks(tmp_path: Path) -> None:
    weight = torch.randn(40, 70).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3)
    whole = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)[:40, :70]
    got = values(tmp_path, {"a.weight": weight, "a.weight_scale_inv": scale},
                 quant_method="fp8", weight_block_size=[32, 32])  # fmt: skip
    np.testing.assert_array_equal(got["a.weight"], (weight.float() * whole).numpy())
    stack = torch.stack([weight.float(), -weight.float()]).to(torch.float8_e4m3fn)
    tensors = {"e.gate_up_proj": stack, "e.gate_up_proj_scale_inv": torch.stack([scale, 2 * scale])}
    got = values(tmp_path, tensors, quant_method="fp8", weight_block_size=[32, 32])
    want = stack.float() * torch.stack([whole, 2 * whole])
    np.testing.assert_array_equal(got["e.gate_up_proj"], want.numpy())


def gptq(codes: Array, zeros: Array, scales: Array, bits: int, groups: Any, one: int = 1) -> Any:
    return {
        "a.qweight": stream(codes, bits, 1).T, "a.qzeros": stream(zeros - one, bits, 0).T,
        "a.scales": torch.from_numpy(scales.T.copy()), "a.bias": torch.ones(N_OUT),
        "a.g_idx": torch.from_numpy(groups.astype(np.int32)),
    }  # fmt: skip


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_gptq(tmp_path: Path, bits: int, form: str) -> None:
    codes, zeros, scales = grid(bits)
    order = np.arange(N_IN) // EACH
    for groups in (order, RANDOM.permutation(order)):
        tensors = gptq(codes, zeros, scales, bits, groups, int(form == "gptq"))
        how = {"quant_method": "gptq", "bits": bits, "checkpoint_format": form}
        got = values(tmp_path, tensors, **how)
        assert sorted(got) == ["a.bias", "a.weight"]
        np.testing.assert_array_equal(got["a.weight"], meant(codes, zeros, scales, groups))


@pytest.mark.parametrize(
    ("bits", "zero", "want"),
    [(2, 2, "q4_0"), (3, 4, "q4_0"), (4, 8, "q4_0"), (8, 128, "q8_0"), (4, None, "q5_0"),
     (8, None, "f16")],
)  # fmt: skip
def test_blocks_hold_gptq(tmp_path: Path, bits: int, zero: int | None, want: str) -> None:
    codes, zeros, scales = grid(bits)
    zeros[...] = zeros if zero is None else zero
    tensors = gptq(codes, zeros, scales, bits, np.arange(N_IN) // EACH)
    del tensors["a.bias"]
    assert kind(tmp_path, tensors, quant_method="gptq", bits=bits) == want
    half = gptq(codes, zeros, scales, bits, np.arange(N_IN) % N_GROUP)
    del half["a.bias"]
    assert kind(tmp_path, half, quant_method="gptq", bits=bits) == "f16"
    wide = np.repeat(scales, 4, 1)  # groups of 8 are no blocks
    small = gptq(codes, np.repeat(zeros, 4, 1), wide, bits, np.arange(N_IN) // 8)
    del small["a.bias"]
    assert kind(tmp_path, small, quant_method="gptq", bits=bits) == "f16"


@pytest.mark.parametrize("version", ["gemm", "gemv"])
@pytest.mark.parametrize("method", ["awq", "auto-round"])
def test_awq(tmp_path: Path, version: str, method: str) -> None:
    codes, zeros, scales = grid(low=0)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of the eight columns that share a word

    def mixed(a: Array) -> Any:
        return stream(a.reshape(len(a), -1, 8)[..., order].reshape(a.shape), 4, 1)

    if version == "gemm":
        tensors = {"a.qweight": mixed(codes.T), "a.qzeros": mixed(zeros.T),
                   "a.scales": torch.from_numpy(scales.T.copy())}  # fmt: skip
    else:
        longer = np.pad(scales, ((0, 0), (0, 8 - N_GROUP)))
        tensors = {"a.qweight": stream(codes, 4, 1), "a.qzeros": stream(zeros, 4, 1),
                   "a.scales": torch.from_numpy(longer)}  # fmt: skip
    how = {"quant_method": method, "bits": 4, "version": version, "group_size": EACH,
           "packing_format": "auto_round:auto_awq"}  # fmt: skip
    got = values(tmp_path, tensors, **how)
    np.testing.assert_array_equal(got["a.weight"], meant(codes, zeros, scales))
    assert kind(tmp_path, tensors, **how) == "q5_0"


def packed(
    codes: Array, scales: Any, bits: int, zeros: Any = None, groups: Any = None
) -> dict[str, Any]:
    """A matrix of compressed-tensors' pack-quantized."""
    tensors = {"a.weight_packed": stream(codes, bits, 1, whole=True), "a.weight_scale": scales,
               "a.weight_shape": torch.tensor(codes.shape)}  # fmt: skip
    if zeros is not None:
        tensors["a.weight_zero_point"] = stream(zeros, bits, 0, whole=True)
    if groups is not None:
        tensors["a.weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return tensors


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": form,
            "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("order", ["none", "unused", "own"])
def test_packed_groups(tmp_path: Path, bits: int, uneven: bool, order: str) -> None:
    codes, zeros, scales = grid(bits, 0)
    if not uneven:
        zeros = np.full_like(zeros, 1 << bits - 1)
    groups = {"none": None, "unused": np.full(N_IN, -1), "own": np.arange(N_IN) % N_GROUP}[order]
    tensors = packed(codes, torch.from_numpy(scales), bits, zeros if uneven else None, groups)
    how = compressed("pack-quantized", num_bits=bits, group_size=EACH, symmetric=not uneven)
    of = groups if order == "own" else None
    got = values(tmp_path, tensors, **how)
    np.testing.assert_array_equal(got["a.weight"], meant(codes, zeros, scales, of))
    exact = {3: "q4_0", 4: "q5_0" if uneven else "q4_0", 5: "q8_0" if uneven else "q5_0",
             6: "q8_0", 8: "f16" if uneven else "q8_0"}[bits]  # fmt: skip
    assert kind(tmp_path, tensors, **how) == ("f16" if order == "own" else exact)


@pytest.mark.parametrize("width", [1, N_GROUP])
def test_scales_that_no_block_holds(tmp_path: Path, width: int) -> None:
    codes = RANDOM.integers(0, 16, (N_OUT, N_IN))
    scales = RANDOM.random((N_OUT, width)).astype(np.float32)
    how = compressed("pack-quantized", num_bits=4, strategy="channel" if width == 1 else "group")
    tensors = packed(codes, torch.from_numpy(scales), 4)
    assert kind(tmp_path, tensors, **how) == "bf16"
    got = values(tmp_path, tensors, **how)
    np.testing.assert_array_equal(got["a.weight"], meant(codes, 8, scales))
    rounded = torch.from_numpy(scales).bfloat16()
    assert kind(tmp_path, packed(codes, rounded, 4), **how) == "q4_0"
    assert kind(tmp_path, packed(codes, rounded * 1e-6, 4), **how) == "bf16"


@pytest.mark.parametrize("form", ["int-quantized", "naive-quantized"])
@pytest.mark.parametrize("scales", [(1,), (N_OUT, 1), (N_OUT, N_GROUP)])
def test_int8(tmp_path: Path, form: str, scales: tuple[int, ...]) -> None:
    codes = RANDOM.integers(-128, 128, (N_OUT, N_IN)).astype(np.int8)
    scale = RANDOM.random(scales).astype(np.float16)
    tensors = {"a.weight": torch.from_numpy(codes), "a.weight_scale": torch.from_numpy(scale)}
    each = np.broadcast_to(scale if len(scales) > 1 else scale[None], (N_OUT, scales[-1]))
    how = compressed(form, num_bits=8, type="int")
    np.testing.assert_array_equal(values(tmp_path, tensors, **how)["a.weight"],
                                  meant(codes, 0, each))  # fmt: skip
    assert kind(tmp_path, tensors, **how) == "q8_0"
    zeros = RANDOM.integers(-128, 128, each.shape).astype(np.int8)
    if len(scales) > 1:
        tensors["a.weight_zero_point"] = torch.from_numpy(zeros)
        want = meant(codes, zeros, each)
        np.testing.assert_array_equal(values(tmp_path, tensors, **how)["a.weight"], want)


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def four_bits(n_in: int, each: int, scale_of: Any) -> tuple[Any, Any, Array]:
    """Codes two to a byte, scales as bytes below 2^7, and the values."""
    codes = RANDOM.integers(0, 16, (N_OUT, n_in))
    scales = RANDOM.integers(1, 126, (N_OUT, n_in // each)).astype(np.uint8)
    want = np.empty(codes.shape, np.float32)
    for i, j in np.ndindex(codes.shape):
        want[i, j] = E2M1[codes[i, j]] * scale_of(int(scales[i, j // each]))
    both = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return torch.from_numpy(both), torch.from_numpy(scales), want


@pytest.mark.parametrize("n_in", [64, 48])
@pytest.mark.parametrize("method", ["modelopt", "compressed-tensors"])
def test_nvfp4(tmp_path: Path, n_in: int, method: str) -> None:
    bytes_of = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()
    codes, scales, want = four_bits(n_in, 16, lambda s: np.float32(bytes_of[s]))
    scales = scales.view(torch.float8_e4m3fn)
    if method == "modelopt":
        tensors = {"a.weight": codes, "a.weight_scale": scales,
                   "a.weight_scale_2": torch.tensor(0.25),
                   "a.input_scale": torch.ones(1)}  # fmt: skip
    else:
        tensors = {"a.weight_packed": codes, "a.weight_scale": scales,
                   "a.weight_global_scale": torch.tensor([4.0]),
                   "a.input_global_scale": torch.ones(1)}  # fmt: skip
    how = compressed("nvfp4-pack-quantized", num_bits=4) | {"quant_method": method}
    got = values(tmp_path, tensors, **how)
    assert list(got) == ["a.weight"]
    np.testing.assert_array_equal(got["a.weight"], want * np.float32(0.25))
    assert kind(tmp_path, tensors, **how) == ("nvfp4" if n_in == 64 else "bf16")


def test_mxfp4_of_compressed_tensors(tmp_path: Path) -> None:
    codes, scales, want = four_bits(64, 32, lambda s: np.float32(2.0) ** (s - 127))
    tensors = {"a.weight_packed": codes, "a.weight_scale": scales}
    how = compressed("mxfp4-pack-quantized", num_bits=4)
    np.testing.assert_array_equal(values(tmp_path, tensors, **how)["a.weight"], want)
    assert kind(tmp_path, tensors, **how) == "mxfp4"


def test_several_groups_of_settings(tmp_path: Path) -> None:
    codes, _, scales = grid(8)
    small, _, _ = grid(4)
    tensors = {name.replace("a.", "m.up_proj."): t
               for name, t in packed(codes, torch.from_numpy(scales), 8).items()}  # fmt: skip
    tensors |= packed(small, torch.from_numpy(scales), 4)
    weight = torch.randn(4, 6).to(torch.float8_e4m3fn)
    tensors |= {
        "b.weight": weight,
        "b.weight_scale": torch.rand(4, 1),
        "c.weight": torch.ones(2, 2),
    }
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}, "format": "pack-quantized"},
        "group_1": {"targets": ["re:.*up_proj$"], "weights": {"num_bits": 8}},
        "group_2": {"targets": ["b"], "weights": {"num_bits": 8, "type": "float"},
                    "format": "float-quantized"},
    }  # fmt: skip
    how = {"quant_method": "compressed-tensors", "format": "pack-quantized",
           "config_groups": groups, "ignore": ["c"]}  # fmt: skip
    got = values(tmp_path, tensors, **how)
    assert sorted(got) == ["a.weight", "b.weight", "c.weight", "m.up_proj.weight"]
    np.testing.assert_array_equal(got["m.up_proj.weight"], meant(codes, 128, scales))
    np.testing.assert_array_equal(got["a.weight"], meant(small, 8, scales))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx(tmp_path: Path, bits: int) -> None:
    codes, _, scales = grid(bits)
    minima = RANDOM.random(scales.shape).astype(np.float16)
    tensors = {"a.weight": stream(codes, bits, 1).view(torch.uint32),
               "a.scales": torch.from_numpy(scales),
               "a.biases": torch.from_numpy(minima)}  # fmt: skip
    found = read(tmp_path, tensors, quantization={"bits": 4, "group_size": EACH})
    assert list(found) == ["a.weight"]
    each = np.repeat(minima.astype(np.float32), EACH, 1)
    want = meant(codes, 0, scales) + each
    np.testing.assert_array_equal(found["a.weight"].load(), want)
    wanted = {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1", 6: "f16", 8: "f16"}[bits]
    assert found["a.weight"].kind == wanted
    pack = found["a.weight"].packed
    if pack is not None:
        np.testing.assert_array_equal(quants.decode(pack(), wanted), want)


@pytest.mark.parametrize(("mode", "each"), [("mxfp4", 32), ("nvfp4", 16), ("mxfp8", 64)])
def test_mlx_floats(tmp_path: Path, mode: str, each: int) -> None:
    bytes_of = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()
    of = {"mxfp4": lambda s: np.float32(2.0) ** (s - 127), "nvfp4": lambda s: bytes_of[s]}
    codes, scales, want = four_bits(64, each, of.get(mode, bytes_of.__getitem__))
    tensors = {"a.weight": codes.contiguous().view(torch.uint32), "a.scales": scales}
    config = {"bits": 4, "group_size": each, "mode": mode}
    if mode == "mxfp8":
        with pytest.raises(FormatError, match="affine, mxfp4 and nvfp4"):
            read(tmp_path, tensors, quantization=config)
        return
    found = read(tmp_path, tensors, quantization=config)["a.weight"]
    np.testing.assert_array_equal(found.load(), want)
    assert found.kind == mode and found.packed is not None
    np.testing.assert_array_equal(quants.decode(found.packed(), mode), want)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_bitsandbytes_tables(tmp_path: Path, nested: bool, name: str) -> None:
    n_block = N_OUT * N_IN // 64
    codes = RANDOM.integers(0, 16, N_OUT * N_IN)
    table = np.sort(RANDOM.standard_normal(16)).astype(np.float32)
    most = RANDOM.random(n_block).astype(np.float32)
    state: dict[str, Any] = {"quant_type": name, "blocksize": 64, "dtype": "bfloat16",
                             "shape": [N_OUT, N_IN]}  # fmt: skip
    both = (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None]
    tensors = {"a.weight": torch.from_numpy(both), "a.weight.absmax": torch.from_numpy(most),
               "a.weight.quant_map": torch.from_numpy(table)}  # fmt: skip
    if nested:
        inner = RANDOM.random(256).astype(np.float32)
        places = RANDOM.integers(0, 256, n_block).astype(np.uint8)
        state |= {"nested_offset": 0.25, "nested_blocksize": 256}
        tensors |= {"a.weight.absmax": torch.from_numpy(places),
                    "a.weight.nested_absmax": torch.tensor([1.5]),
                    "a.weight.nested_quant_map": torch.from_numpy(inner)}  # fmt: skip
        most = inner[places] * np.float32(1.5) + np.float32(0.25)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
    tensors[f"a.weight.quant_state.bitsandbytes__{name}"] = torch.from_numpy(text)
    got = values(tmp_path, tensors, quant_method="bitsandbytes")
    want = [table[code] * most[i // 64] for i, code in enumerate(codes.tolist())]
    assert list(got) == ["a.weight"]
    np.testing.assert_array_equal(got["a.weight"].reshape(-1), np.array(want, np.float32))


def test_bitsandbytes_int8(tmp_path: Path) -> None:
    codes = RANDOM.integers(-127, 128, (N_OUT, N_IN)).astype(np.int8)
    most = (127 * RANDOM.integers(1, 9, N_OUT) / 64).astype(np.float32)
    tensors = {"a.weight": torch.from_numpy(codes), "a.SCB": torch.from_numpy(most),
               "a.weight_format": torch.tensor(0, dtype=torch.uint8)}  # fmt: skip
    got = values(tmp_path, tensors, quant_method="bitsandbytes")
    np.testing.assert_array_equal(got["a.weight"], meant(codes, 0, most[:, None] / 127))
    assert kind(tmp_path, tensors, quant_method="bitsandbytes") == "q8_0"


def test_torchao(tmp_path: Path) -> None:
    """What transformers saves: parts of each tensor, and its class in the file's header."""
    ao = pytest.importorskip("torchao.quantization")
    flat = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    for config in (
        ao.Int8WeightOnlyConfig(version=2),
        ao.Int8DynamicActivationInt8WeightConfig(version=2),
        ao.Float8WeightOnlyConfig(),
        ao.IntxWeightOnlyConfig(torch.int4, ao.granularity.PerGroup(EACH)),
    ):
        linear = torch.nn.Linear(N_IN, N_OUT, bias=False, dtype=torch.bfloat16)
        model = torch.nn.Sequential(linear)
        ao.quantize_(model, config)
        weight = model[0].weight
        spread = weight.scale.float().repeat_interleave(N_IN // weight.scale.shape[-1], 1)
        want = weight.qdata.float() * spread
        tensors, about = flat.flatten_tensor_state_dict({"a.weight": model[0].weight})
        save_file(tensors, tmp_path / "model.safetensors", about)
        c = Config(tmp_path, {"num_hidden_layers": 1,
                              "quantization_config": {"quant_method": "torchao"}})  # fmt: skip
        found = readable(c, open_shards(tmp_path))
        assert list(found) == ["a.weight"]
        np.testing.assert_allclose(found["a.weight"].load(), want.numpy(), rtol=1e-6)
        assert found["a.weight"].kind == ("bf16" if "Float8" in str(type(config)) else "q8_0")


def in_parts(codes: Array, bits: int, from_top: bool) -> Any:
    """Rows of codes whose parts share bytes: the first part in the highest bits or the lowest."""
    rows = codes.reshape(8 // bits, -1, codes.shape[1])
    places = reversed(range(8 // bits)) if from_top else range(8 // bits)
    packed = sum(part.astype(np.int64) << bits * i for i, part in zip(places, rows, strict=True))
    return torch.from_numpy(np.asarray(packed, np.uint8))


def hqq(codes: Array, scale: Array, zero: Array, bits: int, axis: int) -> dict[str, Any]:
    """What HQQ's layers save of `[n_groups, 32]` codes, or of `[32, n_groups]` ones (axis 0)."""
    if bits == 3:
        padded = np.zeros((-(-len(codes) // 10) * 10, codes.shape[1]), np.int32)
        padded[: len(codes)] = codes
        words = sum(part << 27 - 3 * i for i, part in enumerate(np.split(padded, 10)))
        packed, form = torch.from_numpy(np.asarray(words, np.int32)), b"3bit_32"
    else:
        packed, form = in_parts(codes, bits, True), b"%dbit_u8" % bits
    return {
        "a.W_q": packed, "a.scale": torch.from_numpy(scale), "a.zero": torch.from_numpy(zero),
        "a.shape": torch.tensor([N_OUT, N_IN]), "a.axis": torch.tensor(axis, dtype=torch.int32),
        "a.packing": torch.tensor(list(form), dtype=torch.uint8),
        "a.nbits": torch.tensor(bits, dtype=torch.int32),
        "a.round_zero": torch.tensor(1, dtype=torch.uint8),
    }  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_hqq(tmp_path: Path, bits: int, axis: int) -> None:
    """Whole zero points of groups along rows have blocks; others are values."""
    n_group = N_OUT * N_GROUP
    shape = (n_group, EACH) if axis else (EACH, n_group)
    codes = RANDOM.integers(0, 1 << bits, shape)
    scale = RANDOM.uniform(0.5, 2, (n_group, 1) if axis else (1, n_group)).astype(np.float16)
    top = min(1 << bits, 16)
    for whole in (True, False):
        zero = RANDOM.integers(0, top, scale.shape).astype(np.float16) + np.float16(
            0 if whole else 0.25
        )
        saved = hqq(codes, scale, zero, bits, axis)
        want = ((codes - zero.astype(np.float32)) * scale.astype(np.float32)).reshape(N_OUT, N_IN)
        got = values(tmp_path, saved, quant_method="hqq")
        assert list(got) == ["a.weight"]
        np.testing.assert_array_equal(got["a.weight"], want)
        small = {1: "q4_0", 2: "q4_0", 3: "q4_0", 4: "q5_0", 8: "f16"}[bits]
        assert kind(tmp_path, saved, quant_method="hqq") in (
            ({small, "q5_0"} if bits < 8 else {"f16"}) if whole and axis else {"f16"}
        )
    saved["a.packing"] = torch.tensor(list(b"5bit"), dtype=torch.uint8)
    with pytest.raises(FormatError, match="packed by HQQ as '5bit'; weft reads 8bit_u8, "):
        values(tmp_path, saved, quant_method="hqq")
    saved = hqq(codes, scale, zero, bits, axis) | {"a.shape": torch.tensor([N_OUT, 1 << 40])}
    with pytest.raises(FormatError, match="make no matrix of"):
        values(tmp_path, saved, quant_method="hqq")
    del saved["a.scale"]
    with pytest.raises(FormatError, match=r"a\.scale' is missing"):
        values(tmp_path, saved, quant_method="hqq")


def quanto(folder: Path, tensors: dict[str, Any], weights: str, name: str) -> dict[str, Values]:
    (folder / "quanto_qmap.json").write_text(json.dumps({name: {"weights": weights}}))
    return read(folder, tensors, hidden_size=N_IN)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("whole", [False, True], ids=["offsets", "zero points"])
def test_quanto_in_groups(tmp_path: Path, bits: int, whole: bool) -> None:
    n_group = N_OUT * N_GROUP
    codes = RANDOM.integers(0, 1 << bits, (n_group, EACH))
    scale = RANDOM.uniform(0.5, 2, (n_group, 1)).astype(np.float16)
    shift = RANDOM.integers(0, 1 << bits, scale.shape)
    typed = shift.astype(np.int8) if whole else (shift + 0.25).astype(np.float16)
    wide, each = typed.astype(np.float32), scale.astype(np.float32)
    want = (codes - wide) * each if whole else codes * each - wide
    for name, sizes in (("x.q_proj", (N_OUT, N_IN)), ("x.o_proj", (N_IN, N_OUT))):
        saved = {
            f"{name}.weight._data._data": in_parts(codes, bits, False),
            f"{name}.weight._scale": torch.from_numpy(scale),
            f"{name}.weight._shift": torch.from_numpy(typed),
            f"{name}.input_scale": torch.ones(()),
        }
        if sizes[1] % EACH:  # a row would end within a group
            with pytest.raises(FormatError, match=r"do not say the sizes of x\.o_proj"):
                quanto(tmp_path, saved, f"qint{bits}", name)
            continue
        found = quanto(tmp_path, saved, f"qint{bits}", name)
        assert list(found) == [f"{name}.weight"]
        v = found[f"{name}.weight"]
        assert v.kind == ("q4_1" if not whole else "q4_0" if bits == 2 else "q5_0")
        np.testing.assert_array_equal(v.load(), want.reshape(sizes))
        np.testing.assert_array_equal(quants.decode(v.packed(), v.kind), v.load())  # type: ignore[misc]
    with pytest.raises(FormatError, match=r"x\.q_proj is quantized by quanto as 'qint3'"):
        quanto(tmp_path, {k.replace("o_proj", "q_proj"): t for k, t in saved.items()}, "qint3",
               "x.q_proj")  # fmt: skip


def test_quanto_by_rows(tmp_path: Path) -> None:
    codes = RANDOM.integers(-127, 128, (N_OUT, N_IN)).astype(np.int8)
    scale = RANDOM.uniform(0.5, 2, (N_OUT, 1)).astype(np.float16)
    saved = {"a.weight._data": torch.from_numpy(codes), "a.weight._scale": torch.from_numpy(scale)}
    found = quanto(tmp_path, saved, "qint8", "a")["a.weight"]
    assert found.kind == "q8_0"
    np.testing.assert_array_equal(found.load(), codes * scale.astype(np.float32))
    saved["a.weight._data"] = torch.from_numpy(codes).float().to(F8["e4m3"])
    found = quanto(tmp_path, saved, "qfloat8_e4m3fn", "a")["a.weight"]
    want = saved["a.weight._data"].float().numpy() * scale.astype(np.float32)
    np.testing.assert_array_equal(found.load(), want)


def test_torchao_of_four_bits(tmp_path: Path) -> None:
    """Int4Tensor: the offset of a group is a float, which a block holds if 16 bits do."""
    codes = RANDOM.integers(-8, 8, (N_OUT, N_IN))
    packed = (codes[:, ::2] & 15 | (codes[:, 1::2] & 15) << 4).astype(np.uint8)
    scale = 2.0 ** RANDOM.integers(-3, 3, (N_GROUP, N_OUT))
    for offset, wanted in ((0, "q4_0"), (1.5, "q4_1"), (2.0**-11, "bf16")):
        saved = {
            "a._weight_qdata": torch.from_numpy(packed).view(torch.int8),
            "a._weight_scale": torch.from_numpy(scale).bfloat16(),
            "a._weight_zero_point": torch.full((N_GROUP, N_OUT), offset).bfloat16(),
        }
        about = {"a.weight": json.dumps({"_type": "Int4Tensor"})}
        save_file(saved, tmp_path / "model.safetensors", about)
        c = Config(
            tmp_path, {"num_hidden_layers": 1, "quantization_config": {"quant_method": "torchao"}}
        )
        (found,) = readable(c, open_shards(tmp_path)).values()
        want = codes * np.repeat(scale.T, EACH, 1) + offset
        assert found.kind == wanted and found.shape == want.shape
        np.testing.assert_array_equal(found.load(), want.astype(np.float32))
        if found.packed is not None:
            np.testing.assert_array_equal(quants.decode(found.packed(), wanted), found.load())
    saved["a._weight_scale"] = saved["a._weight_scale"].T.contiguous()
    save_file(saved, tmp_path / "model.safetensors", about)
    with pytest.raises(FormatError, match="weft reads matrices in groups of each row"):
        readable(c, open_shards(tmp_path))


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"quant_method": "aqlm"}, "quantized by 'aqlm'; weft reads fp8, .*torchao, hqq, quanto"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "layout 'marlin'"),
        ({"quant_method": "awq", "version": "gemv_fast"}, "layout 'gemv_fast'"),
        ({"quant_method": "awq", "bits": 8}, "AWQ with 4 bits only"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:x"}, "layout 'auto_round:x'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "ModelOpt's W4A16_AWQ"),
        (compressed("marlin-24"), "format 'marlin-24'"),
        (compressed("pack-quantized") | {"sparsity_config": {"format": "sparse-bitmask"}},
         "format 'sparse-bitmask'"),
        (compressed("pack-quantized") | {"transform_config": {"x": 1}}, "transform_config"),
    ],
)  # fmt: skip
def test_refused_by_name(tmp_path: Path, how: dict[str, Any], match: str) -> None:
    with pytest.raises(FormatError, match=match):
        values(tmp_path, {"a.weight": torch.ones(2, 2)}, **how)


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    codes, zeros, scales = grid()
    good = gptq(codes, zeros, scales, 4, np.arange(N_IN) // EACH)
    packs = packed(codes, torch.from_numpy(scales), 4)
    pack = compressed("pack-quantized", num_bits=4)
    fp8 = {"a.weight": torch.ones(4, 6).to(F8["e4m3"]), "a.weight_scale": torch.ones(3, 1)}
    for tensors, how in (
        (good | {"a.scales": torch.ones(3, 5)}, {"quant_method": "gptq"}),
        (good | {"a.g_idx": torch.full((N_IN,), 9, dtype=torch.int32)}, {"quant_method": "gptq"}),
        (good | {"a.qzeros": torch.zeros(1, 1, dtype=torch.int32)}, {"quant_method": "gptq"}),
        (
            {
                "a.qweight": torch.zeros(N_IN, 3, dtype=torch.int32),
                "a.scales": torch.ones(2, N_OUT),
                "a.qzeros": torch.zeros(2, 2, dtype=torch.int32),
            },
            {"quant_method": "awq"},
        ),
        (packs | {"a.weight_shape": torch.tensor([N_OUT, 4 * N_IN])}, pack),
        (packs | {"a.weight_scale": torch.ones(N_OUT, 5)}, pack),
        (packs | {"a.weight_packed": torch.ones(2, dtype=torch.int32)}, pack),
        (packs | {"a.weight_shape": torch.tensor([1 << 36, N_IN])}, pack),
        (fp8, compressed("float-quantized")),
    ):
        with pytest.raises(FormatError), understood(tmp_path):
            values(tmp_path, tensors, **how)


def test_sentences_say_that_tensors_do_not_fit(tmp_path: Path) -> None:
    """Sizes that a division or a view cannot take are named as the tensors' fault."""
    scale = torch.ones(12, 1)
    groups = {"q_proj.weight._data._data": torch.ones(6, 0, dtype=torch.uint8),
              "q_proj.weight._scale": scale, "q_proj.weight._shift": scale}  # fmt: skip
    rows = {"a.weight._data": torch.ones((), dtype=torch.int8), "a.weight._scale": scale}
    for tensors, weights, name in ((groups, "qint4", "q_proj"), (rows, "qint8", "a")):
        with pytest.raises(FormatError, match="tensors quantized by quanto do not fit together"):
            quanto(tmp_path, tensors, weights, name)
    (tmp_path / "quanto_qmap.json").unlink()
    codes, zero = np.ones((96, 32), np.int64), np.ones((96, 1), np.float16)
    saved = hqq(codes, zero, zero, 4, 1) | {"a.shape": torch.tensor([-48, -64])}
    with pytest.raises(FormatError, match=r"make no matrix of \[-48, -64\]"):
        values(tmp_path, saved, quant_method="hqq")


def test_codes_of_int4_tensor_have_two_axes(tmp_path: Path) -> None:
    ones = torch.ones(1, 4)
    for codes in (torch.ones(8, dtype=torch.int8), torch.ones(4, 8, dtype=torch.int32)):
        saved = {"a._weight_qdata": codes, "a._weight_scale": ones}
        saved["a._weight_zero_point"] = ones.clone()
        about = {"a.weight": json.dumps({"_type": "Int4Tensor"})}
        save_file(saved, tmp_path / "model.safetensors", about)
        how = {"num_hidden_layers": 1, "quantization_config": {"quant_method": "torchao"}}
        with pytest.raises(FormatError, match="weft reads matrices in groups of each row"):
            readable(Config(tmp_path, how), open_shards(tmp_path))


def test_blocks_beyond_a_matrix_take_no_memory(tmp_path: Path) -> None:
    """Sizes of blocks are what a stranger writes, and a matrix is as large as its file."""
    fp8 = {"a.weight": torch.ones(4, 6).to(F8["e4m3"]), "a.weight_scale_inv": torch.ones(1, 1)}
    for block in ([1 << 24, 1 << 24], [1 << 60, 1 << 60]):
        got = values(tmp_path, fp8, quant_method="fp8", weight_block_size=block)
        assert (got["a.weight"] == 1).all()
    got = values(tmp_path, table_of_ones({"blocksize": 1 << 44}), quant_method="bitsandbytes")
    assert (got["a.weight"] == 1).all()


@pytest.mark.parametrize(
    "state",
    [
        {"shape": [-4, -8]}, {"shape": [1 << 32, 1 << 32]}, {"nested_offset": {}}, b"[" * 99999,
        {"blocksize": None}, b"null",
    ],
)  # fmt: skip
def test_hostile_states_of_bitsandbytes(tmp_path: Path, state: Any) -> None:
    with pytest.raises(FormatError, match=str(tmp_path)), understood(tmp_path):
        values(tmp_path, table_of_ones(state), quant_method="bitsandbytes")


def table_of_ones(state: Any) -> dict[str, Any]:
    """A matrix of 4 x 8 ones; `state` replaces what is said about it, or is it all, as bytes."""
    usual = {"shape": [4, 8], "blocksize": 32}
    text = state if isinstance(state, bytes) else json.dumps(usual | state).encode()
    return {
        "a.weight": torch.zeros(16, 1, dtype=torch.uint8), "a.weight.absmax": torch.ones(1),
        "a.weight.quant_map": torch.ones(16),
        "a.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(text), dtype=torch.uint8),
    }  # fmt: skip


def test_many_tensors_of_torchao(tmp_path: Path) -> None:
    """The header of a file is read once, however many tensors it describes."""
    about = json.dumps({"_type": "Int8Tensor"})
    names = [f"a{i}" for i in range(3000)]
    save_file(
        {f"{name}._weight_qdata": torch.ones(1, 1, dtype=torch.int8) for name in names},
        tmp_path / "model.safetensors", {f"{name}.weight": about for name in names},
    )  # fmt: skip
    c = Config(
        tmp_path, {"num_hidden_layers": 1, "quantization_config": {"quant_method": "torchao"}}
    )
    start = time.process_time()
    found = readable(c, open_shards(tmp_path))
    assert len(found) == 3000 and time.process_time() - start < 3

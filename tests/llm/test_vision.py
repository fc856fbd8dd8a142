"""Images in prompts: towers and logits beside transformers, prefixes, and what is refused."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import ChatError, ContextError, FormatError
from weft.llm import LLM

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from tests.llm import vision_models  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, close, picture, pixel_values  # noqa: E402


def png(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    return vision_models.gemma3(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture
def llm(made: tuple[Any, Path, Path]) -> LLM:
    _, text, tower = made
    return LLM(text, mmproj=tower, n_seq_max=2, n_outputs=64, chat_template=TEMPLATE, **F32)


TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


def test_gemma3_beside_transformers(made: tuple[Any, Path, Path], llm: LLM) -> None:
    """The image is longer than the window of two layers and sees itself both ways in the third."""
    model, pixels = made[0], picture()
    assert "tower: mmproj.gguf on cpu, weights" in llm.explain(brief=True)
    values = pixel_values(pixels)
    features = model.get_image_features(values)
    close(llm.sight.rows(pixels), getattr(features, "pooler_output", features)[0])
    ids = llm.sight.ids(pixels)
    prompt = torch.tensor([[*BEFORE, *[vision_models.IMAGE] * len(ids), *BEHIND]])
    types = (prompt == vision_models.IMAGE).long()
    want = model(input_ids=prompt, pixel_values=values, token_type_ids=types).logits[0]
    close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want)


@pytest.mark.parametrize("kind", ["qwen2vl", "qwen2.5vl", "qwen3vl"])
def test_qwen_beside_transformers(tmp_path: Path, kind: str) -> None:
    """Images of two proportions in a prompt, and tokens behind them one by one."""
    model, text, tower = vision_models.qwen(tmp_path, kind)
    llm = LLM(text, mmproj=tower, n_outputs=128, **F32 | {"n_ctx": 128})
    patches, grids, rows = [], [], []
    prompt, ours = list(BEFORE), list(BEFORE)
    for seed, (height, width) in enumerate([(168, 280), (224, 112)]):
        pixels = picture(seed, height, width)
        rows.append(llm.sight.rows(pixels))
        ids = llm.sight.ids(pixels)
        prompt += [vision_models.IMAGE] * len(ids) + BEHIND
        ours += ids + BEHIND
        h, w = height // 56, width // 56
        values = pixel_values(pixels)[0].reshape(3, h, 2, 28, w, 2, 28).permute(1, 4, 2, 5, 0, 3, 6)
        frames = values.reshape(h * w * 4, 3, 1, 28, 28).repeat(1, 1, 2, 1, 1)
        patches.append(frames.reshape(h * w * 4, -1))
        grids.append([1, h * 2, w * 2])
    seen: dict[str, Any] = {"pixel_values": torch.cat(patches)}
    seen["image_grid_thw"] = torch.tensor(grids)
    features = model.get_image_features(*seen.values())
    close(np.concatenate(rows)[:, :32], torch.cat(list(features.pooler_output)))
    inputs = torch.tensor([prompt])
    types = (inputs == vision_models.IMAGE).int()
    want = model(input_ids=inputs, mm_token_type_ids=types, **seen).logits[0]
    close(llm.context.decode(ours, outputs="all"), want)
    llm.context.clear()
    llm.context.decode(ours[:12], outputs=[False] * 12)  # within the first image
    llm.context.decode(ours[12:-2], outputs=[False] * (len(ours) - 14))
    close(np.concatenate([llm.context.decode([id_]) for id_ in ours[-2:]]), want[-2:])
    with pytest.raises(ContextError, match="images in its texts"):
        llm.context.drop_oldest()


def test_two_sequences_and_parts_of_a_prompt(llm: LLM) -> None:
    """A batch with tokens and images of two sequences equals one after the other."""
    ids = [[*BEFORE, *llm.sight.ids(picture(n)), *BEHIND] for n in range(2)]
    context = llm.context
    alone = []
    for prompt in ids:
        context.clear()
        alone.append(context.decode(prompt, outputs="all"))
    context.clear()
    n = len(ids[0])
    rows = context.decode(
        [*ids[0], *ids[1]], [*range(n)] * 2, seqs=[[0]] * n + [[1]] * n, outputs=[True] * 2 * n
    )
    np.testing.assert_allclose(rows, np.concatenate(alone), atol=1e-5)
    assert np.abs(alone[0] - alone[1]).max() > 0.1
    context.clear()
    with pytest.raises(ContextError, match="must come together"):
        context.decode(ids[0][:10], outputs=[False] * 10)
    assert context.cache.n_used == 0


def test_a_second_turn_computes_new_tokens_only(llm: LLM) -> None:
    part = {"type": "image", "image": picture()}
    first: Any = {"role": "user", "content": [part, {"type": "text", "text": "the abc"}]}
    answer = llm.chat([first], max_tokens=4, temperature=0)
    n = llm.stats.n_prompt
    turns = [first, {"role": "assistant", "content": "abc"}, {"role": "user", "content": "a"}]
    again = llm.chat(turns, max_tokens=4, temperature=0)
    assert llm.stats.n_cached >= n - 1 > 16
    assert llm.chat(turns, max_tokens=4, temperature=0, cache_prompt=False) == again
    other: Any = {"role": "user", "content": [part | {"image": picture(1)}, *first["content"][1:]]}
    llm.chat([other], max_tokens=4, temperature=0)
    assert llm.stats.n_cached < n - 16  # not the cells of the first image
    assert llm.chat([first], max_tokens=4, temperature=0) == answer


def test_what_an_image_may_be(llm: LLM, tmp_path: Path) -> None:
    pixels = picture()
    path = tmp_path / "a.png"
    path.write_bytes(png(pixels))
    url = "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
    ids = llm.sight.ids(pixels)
    for given in (path, str(path), png(pixels), url, Image.fromarray(pixels)):
        assert llm.sight.ids(given) == ids
    text: Any = {"type": "text", "text": "a"}
    asked = [{"type": "image_url", "image_url": {"url": url}}, text]
    plain = [text, {"type": "image", "image": path}]
    assert set(ids) < set(llm.chat_prompt([{"role": "user", "content": asked}]))
    assert set(ids) < set(llm.chat_prompt([{"role": "user", "content": plain}]))
    with pytest.raises(ContextError, match="are not fetched"):
        llm.sight.ids("http://example.org/a.png", files=False)
    with pytest.raises(ContextError, match="are not fetched"):
        llm.sight.ids(str(path), files=False)


def bomb(width: int, height: int) -> bytes:
    """A PNG that says that it is large."""
    body = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", body), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    out = b"\x89PNG\r\n\x1a\n"
    for name, data in parts:
        out += struct.pack(">I", len(data)) + name + data
        out += struct.pack(">I", zlib.crc32(name + data))
    return out


HOSTILE: dict[str, tuple[Any, str]] = {
    "bomb": (bomb(60000, 60000), "pixels"),
    "larger than what is read": (bomb(9000, 9000), "9000 x 9000 pixels, more than"),
    "a line": (bomb(70000, 1), "70000 x 1 pixels, but a side has at most 65535"),
    "truncated": (png(picture())[:200], "cannot be decoded"),
    "not an image": (b"GIF89a", "cannot be decoded"),
    "text": (b"%PDF-1.4 hello", "cannot be decoded"),
    "no base64": ("data:image/png;base64,@@@", "damaged"),
    "no data": ("data:image/png,abc", "does not begin like"),
    "no file": ("/nowhere/a.png", "image '/nowhere/a.png' cannot be read"),
    "an address": (Path("https://example.org/a.png"), "are not fetched: download it"),
    "floats": (np.zeros((4, 4, 3), np.float32), "u8"),
    "grey": (np.zeros((4, 4), np.uint8), "u8"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused(llm: LLM, name: str) -> None:
    given, message = HOSTILE[name]
    with pytest.raises(ContextError, match=message):
        llm.sight.ids(given)


def test_what_is_refused(made: tuple[Any, Path, Path], tmp_path: Path) -> None:
    _, text, tower = made
    message: Any = {"role": "user", "content": [{"type": "image", "image": picture()}]}
    with LLM(text, chat_template=TEMPLATE, **F32) as blind:
        with pytest.raises(ContextError, match="without a tower for images"):
            blind.chat([message])
    with pytest.raises(FormatError, match="no tower for images"):
        LLM(text, mmproj=text, **F32)
    with pytest.raises(FormatError, match=r"rows for another model .give it as --mmproj"):
        LLM(tower, mmproj=tower, **F32)
    (tmp_path / "a.png").write_bytes(png(picture())[:200])
    with LLM(text, mmproj=tower, **F32) as llm:
        with pytest.raises(ContextError, match=r"image '.*a\.png' cannot be decoded"):
            llm.sight.ids(tmp_path / "a.png")
    with pytest.raises(ContextError, match="n_ubatch is 8"):
        LLM(text, mmproj=tower, n_ubatch=8, **F32)
    with LLM(text, mmproj=tower, chat_template="{{ messages[0].role }}", **F32) as llm:
        with pytest.raises(ChatError, match="0 places for 1 images"):
            llm.chat([message])
    with LLM(text, mmproj=tower, chat_template=TEMPLATE, **F32 | {"n_ctx": 16}) as llm:
        with pytest.raises(ContextError, match="tokens, but the context holds 16"):
            llm.chat([message])
        with pytest.raises(ContextError, match="token ids are"):
            llm.context.decode([1, vision_models.N_VOCAB + 5])


def test_the_longest_unused_images_are_forgotten(llm: LLM) -> None:
    known = llm.context.input_rows
    ids = llm.sight.ids(picture())
    known.most_bytes = 2 * known.nbytes
    for seed in range(1, 4):
        llm.sight.ids(picture(seed))
    assert known.nbytes <= known.most_bytes
    with pytest.raises(ContextError, match="token ids are"):
        llm.context.decode(ids)
    assert llm.sight.ids(picture()) == ids

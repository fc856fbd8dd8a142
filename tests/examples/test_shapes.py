"""The committed model that sees, through weft: names of shapes and colours in held-out pictures."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest

import weft
from tests.cli.in_process import weft as command
from tests.conftest import ROOT

pytest.importorskip("PIL.Image")

import check
import pictures

FOLDER = ROOT / "examples" / "shapes"
PICTURES = {
    "star-and-square.png": "A green star to the left of a red square.",
    "three-triangles.png": "Three purple triangles.",
}
N = 120


@pytest.fixture(scope="module")
def asked() -> list[tuple[pictures.Scene, str, str, str]]:
    """Scenes, questions, answers, and what the model says; every second asks what there is."""
    out = []
    with weft.LLM(check.MODEL, mmproj=check.TOWER) as llm:
        for scene, image, question, answer in check.held_out(N, seed=2):
            assert scene.held_out
            got = llm.chat(check.message(image, question), max_tokens=24, temperature=0)
            out.append((scene, question, answer, got))
    return out


def test_shapes_and_colours_are_named(asked: list[tuple[pictures.Scene, str, str, str]]) -> None:
    described = [(s, got) for s, question, _, got in asked if question == pictures.DESCRIBE[0]]
    assert len(described) >= N // 2
    wrong = [
        (str(s), got)
        for s, got in described
        if not all(word in got.lower() for thing in s.things for word in thing)
    ]
    assert len(wrong) <= 0.05 * len(described), wrong


def test_questions_are_answered(asked: list[tuple[pictures.Scene, str, str, str]]) -> None:
    wrong = [(question, answer, got) for _, question, answer, got in asked if got != answer]
    assert len(wrong) <= 0.06 * N, wrong


@pytest.mark.parametrize("name", PICTURES)
def test_the_command_of_the_readme(name: str) -> None:
    about = (FOLDER / "README.md").read_text()
    assert f"--image examples/shapes/{name}" in about and PICTURES[name] in about
    done = command(
        "run", check.MODEL, "--mmproj", check.TOWER, "--image", FOLDER / name,
        "-p", "What is in the picture?", "-q", "--temp", "0",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{PICTURES[name]}\n"), done.stderr


def test_the_server_sees() -> None:
    """With the text in front of the image, and a second picture in a later turn."""
    pytest.importorskip("openai")
    from tests.serve.in_process import Server

    messages: list[Any] = []
    with Server(check.MODEL, "--mmproj", check.TOWER) as server:
        for name, answer in PICTURES.items():
            url = base64.b64encode((FOLDER / name).read_bytes()).decode()
            parts = [
                {"type": "text", "text": "What is in the picture?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{url}"}},
            ]
            messages.append({"role": "user", "content": parts})
            got = server.client.chat.completions.create(
                model="m", messages=messages, max_tokens=24, temperature=0
            )
            assert got.choices[0].message.content == answer
            messages.append({"role": "assistant", "content": answer})


def test_it_is_small_and_says_what_it_is() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 2_000_000
    for path, arch in ((check.MODEL, "llama"), (check.TOWER, "clip")):
        with weft.open_gguf(path) as file:
            assert file.architecture == arch
            assert file.get_str("general.license", "").lower() == "mit"


def test_a_drawn_picture_is_a_picture_of_its_scene() -> None:
    """What is drawn has the colour of each thing, and sizes that a tower can see."""
    for scene, image, _, _ in check.held_out(20, seed=3):
        data = io.BytesIO()
        image.save(data, "PNG")
        assert min(image.size) == 96 and len(data.getvalue()) > 100
        colours = {colour for _, colour in image.getcolors(1 << 20)}
        for colour, _ in scene.things:
            wanted = pictures.COLOURS[colour]
            assert any(
                all(abs(a - b) <= 14 for a, b in zip(c, wanted, strict=True)) for c in colours
            )

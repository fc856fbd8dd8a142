"""Ask the model about held-out pictures, through weft.

    python examples/shapes/check.py                  # 1000 questions about as many pictures
    python examples/shapes/check.py -n 200 --model FILE --mmproj FILE

Needs weft[vision]. A held-out picture shows what no picture of the training has shown.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pictures

import weft

HERE = Path(__file__).parent
MODEL, TOWER = HERE / "weft-shapes.gguf", HERE / "mmproj-weft-shapes.gguf"


def message(image: Any, question: str) -> list[dict[str, Any]]:
    """A conversation about an image."""
    parts = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    return [{"role": "user", "content": parts}]


def held_out(
    n: int, seed: int, broad: bool = False
) -> Iterator[tuple[pictures.Scene, Any, str, str]]:
    """Scenes that were never trained on, a picture of each, a question and its answer; every
    second question is what is in the picture."""
    rng = random.Random(seed)
    for i in range(n):
        scene = pictures.scene(rng, held_out=True)
        image = pictures.draw(scene, rng, broad=broad)
        question, answer = pictures.DESCRIBE[0], str(scene)
        if i % 2:
            question, answer = pictures.ask(scene, rng)
        yield scene, image, question, answer


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask about held-out pictures.")
    parser.add_argument("--model", default=MODEL, help="the text model")
    parser.add_argument("--mmproj", default=TOWER, help="the tower")
    parser.add_argument("-n", type=int, default=1000, help="questions")
    parser.add_argument("--seed", type=int, default=1, help="of the pictures")
    parser.add_argument("--broad", action="store_true", help="dark grounds, wider pictures, ...")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is wrong")
    args = parser.parse_args()
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    named = 0
    with weft.LLM(args.model, mmproj=args.mmproj) as llm:
        for scene, image, question, answer in held_out(args.n, args.seed, args.broad):
            got = llm.chat(message(image, question), max_tokens=24, temperature=0)
            kinds = [question if question in pictures.DESCRIBE else "other questions"]
            if kinds[0] == pictures.DESCRIBE[0]:
                kinds.append(f"  {scene.kind}")
                named += all(word in got.lower() for thing in scene.things for word in thing)
            for kind in kinds:
                asked[kind] += 1
                right[kind] += got == answer
            if got != answer and args.verbose:
                print(f"{question} {answer!r}, not {got!r}")
    for kind in sorted(asked):
        print(f"{kind:26} {right[kind]:4} of {asked[kind]:4}  {right[kind] / asked[kind]:6.1%}")
    n = asked[pictures.DESCRIBE[0]]
    print(f"{'all shapes and colours':26} {named:4} of {n:4}  {named / n:6.1%}")


if __name__ == "__main__":
    main()

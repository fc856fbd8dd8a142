"""Pictures of coloured shapes, and questions about them that have one right answer.

A `Scene` says what is drawn; `draw` draws it with Pillow, `ask` asks and answers. One scene in ten
is held out by a hash of its words: `scene(rng, held_out=False)` never makes one, so no picture
that is asked about in a test was ever trained on.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
COLOURS = {
    "red": (220, 30, 30), "orange": (250, 140, 10), "yellow": (245, 220, 30),
    "green": (30, 160, 60), "blue": (40, 80, 220), "purple": (140, 50, 170),
    "black": (15, 15, 15),
}  # fmt: skip
NUMBERS = ("zero", "one", "two", "three", "four")
PLACES = (
    "At the top left", "At the top", "At the top right", "On the left", "In the middle",
    "On the right", "At the bottom left", "At the bottom", "At the bottom right",
)  # fmt: skip
"""Of a shape alone, row by row."""
DESCRIBE = ("What is in the picture?", "What do you see?", "Describe the picture.")

Point = tuple[float, float]


@dataclass(frozen=True)
class Scene:
    """What is in a picture. Kinds: "one" shape at a place, "many" of the same kind (2 to 4), or
    two: the first "left" of the second, or "above" it."""

    kind: str
    things: tuple[tuple[str, str], ...]
    """Colour and shape of each that has words of its own."""
    detail: int = 0
    """The number of the place of one, or how many there are of many."""

    def __str__(self) -> str:
        """The answer to `DESCRIBE`."""
        first = " ".join(self.things[0])
        if self.kind == "many":
            return f"{NUMBERS[self.detail].capitalize()} {_plural(first)}."
        first = f"{_a(first)}{first}".capitalize()
        if self.kind == "one":
            return f"{first}."
        second = " ".join(self.things[1])
        between = "to the left of" if self.kind == "left" else "above"
        return f"{first} {between} {_a(second)}{second}."

    @property
    def held_out(self) -> bool:
        """True for one scene in ten, which training leaves out."""
        return zlib.crc32(f"{self}{self.detail}".encode()) % 10 == 0


def _a(words: str) -> str:
    return "an " if words[0] in "aeiou" else "a "


def _plural(words: str) -> str:
    return words + ("es" if words.endswith("cross") else "s")


def scene(rng: random.Random, *, held_out: bool, kind: str = "") -> Scene:
    """A scene of the `kind`, or any, that is held out or is not."""
    while True:
        chosen = kind or rng.choice(("one", "one", "many", "left", "above"))
        first = (rng.choice(list(COLOURS)), rng.choice(SHAPES))
        things, detail = (first,), 0
        if chosen in ("left", "above"):
            things = (first, (rng.choice(list(COLOURS)), rng.choice(SHAPES)))
            if things[0] == things[1]:
                continue
        else:
            detail = rng.randint(2, 4) if chosen == "many" else rng.randrange(len(PLACES))
        made = Scene(chosen, things, detail)
        if made.held_out == held_out:
            return made


# --- drawing ----------------------------------------------------------------------------------


def draw(scene: Scene, rng: random.Random, size: int = 96, *, broad: bool = False) -> Image.Image:
    """A picture whose shorter side has `size` pixels, on a light ground; places, sizes and tones
    are up to `rng`. `broad` allows dark grounds, wider pictures and larger shapes."""
    longer = size if rng.random() < 0.6 else int(size * rng.uniform(1, 2 if broad else 1.5))
    width, height = (size, longer) if rng.random() < 0.5 else (longer, size)
    ground = _broad_ground(scene, rng) if broad else _light(rng, 215)
    big = Image.new("RGB", (2 * width, 2 * height), ground)  # edges become smooth when it shrinks
    pen = ImageDraw.Draw(big)
    for (colour, shape), (x, y), radius in _layout(scene, rng, broad):
        r = 2 * size * radius
        # what is at an edge stays inside
        centre = (
            min(max(2 * width * x, r + 2), 2 * width - r - 2),
            min(max(2 * height * y, r + 2), 2 * height - r - 2),
        )
        tone = tuple(min(255, max(0, c + rng.randint(-14, 14))) for c in COLOURS[colour])
        _shape(pen, shape, centre, r, tone, ground, rng)
    return big.resize((width, height), Image.Resampling.BOX)


def _light(rng: random.Random, least: int) -> tuple[int, ...]:
    grey = rng.randint(least, 255)
    return tuple(min(255, max(200, grey + rng.randint(-10, 10))) for _ in range(3))


def _broad_ground(s: Scene, rng: random.Random) -> tuple[int, ...]:
    """White, light, or dark if nothing is black."""
    kind = rng.random()
    if kind < 0.3:
        return (255, 255, 255)
    if kind < 0.45 and all(colour != "black" for colour, _ in s.things):
        return tuple(rng.randint(0, 50) for _ in range(3)) if rng.random() < 0.5 else (0, 0, 0)
    return _light(rng, 210)


def _layout(
    s: Scene, rng: random.Random, broad: bool
) -> Iterator[tuple[tuple[str, str], Point, float]]:
    """Colour and shape, the middle in parts of the sides, and the radius in parts of the shorter
    side, of each."""

    def near(x: float, y: float, by: float) -> Point:
        return x + rng.uniform(-by, by), y + rng.uniform(-by, by)

    if s.kind == "one":
        row, column = divmod(s.detail, 3)
        middle = s.detail == 4
        at = near(0.2 + 0.3 * column, 0.2 + 0.3 * row, 0.04)
        middling, others = (0.48, 0.2) if broad else (0.42, 0.19)
        yield s.things[0], at, rng.uniform(0.13, middling if middle else others)
    elif s.kind == "many":
        radius = rng.uniform(0.12, 0.18)
        spots = rng.sample([(x, y) for x in (0.26, 0.74) for y in (0.26, 0.74)], s.detail)
        if s.detail == 3 and rng.random() < 0.3:  # a line
            line = (0.19, 0.5, 0.81)
            across = rng.random() < 0.5
            spots = [(p, 0.5) if across else (0.5, p) for p in line]
            radius = min(radius, 0.14)
        for x, y in spots:
            yield s.things[0], near(x, y, 0.05 if radius > 0.14 else 0.02), radius
    else:
        for thing, along in zip(s.things, (0.27, 0.73), strict=True):
            x, y = near(along, 0.5, 0.04)[0], 0.5 + rng.uniform(-0.15, 0.15)
            yield thing, (x, y) if s.kind == "left" else (y, x), rng.uniform(0.13, 0.2)


def _shape(pen, shape, centre, r, tone, ground, rng) -> None:
    x, y = centre
    if shape in ("circle", "ring"):
        pen.ellipse((x - r, y - r, x + r, y + r), fill=tone)
        if shape == "ring":
            inner = r * rng.uniform(0.5, 0.65)
            pen.ellipse((x - inner, y - inner, x + inner, y + inner), fill=ground)
    elif shape == "cross":
        arm = r * rng.uniform(0.25, 0.35)
        pen.rectangle((x - r, y - arm, x + r, y + arm), fill=tone)
        pen.rectangle((x - arm, y - r, x + arm, y + r), fill=tone)
    else:
        corners = {"square": 4, "triangle": 3, "star": 10}[shape]
        turn = rng.uniform(-0.2, 0.2) + (math.pi / 4 if shape == "square" else 0)
        radii = (r, 0.42 * r) if shape == "star" else (r, r)
        points = []
        for i in range(corners):
            angle = turn + 2 * math.pi * i / corners - math.pi / 2
            points.append((x + radii[i % 2] * math.cos(angle), y + radii[i % 2] * math.sin(angle)))
        pen.polygon(points, fill=tone)


# --- questions --------------------------------------------------------------------------------


def ask(s: Scene, rng: random.Random) -> tuple[str, str]:
    """A question about the scene, and its answer."""
    things = s.things
    colour, shape = rng.choice(things)
    only = [shape for _, shape in things].count(shape) == 1
    sole = [colour for colour, _ in things].count(colour) == 1
    many = s.kind == "many"
    questions = [("What is in the picture?", str(s)), (rng.choice(DESCRIBE), str(s))]
    count = s.detail if many else len(things)
    questions.append(("How many shapes are there?", f"{NUMBERS[count].capitalize()}."))
    if only:
        verb, name = ("are", _plural(shape)) if many else ("is", shape)
        spelt = rng.choice(("colour", "color"))
        questions.append((f"What {spelt} {verb} the {name}?", f"{colour.capitalize()}."))
    if len(things) == 1:
        asked = "What shapes are they?" if many else "What shape is it?"
        said = f"{_plural(shape).capitalize()}." if many else f"{_a(shape)}{shape}.".capitalize()
        questions.append((asked, said))
    elif sole:
        questions.append((f"What shape is the {colour} one?", f"{_a(shape)}{shape}.".capitalize()))
    if s.kind == "one":
        questions.append((f"Where is the {shape}?", f"{PLACES[s.detail]}."))
    elif not many:
        sides = ("on the left", "on the right")
        if s.kind == "above":
            sides = ("at the top", "at the bottom")
        side = rng.randrange(2)
        words = " ".join(things[side])
        questions.append((f"What is {sides[side]}?", f"{_a(words)}{words}.".capitalize()))
    other = (
        (colour, rng.choice(SHAPES)) if rng.random() < 0.5 else (rng.choice(list(COLOURS)), shape)
    )
    if rng.random() < 0.5:
        other = (colour, shape)
    words = " ".join(other)
    yes = "Yes." if other in things else "No."
    questions.append((f"Is there {_a(words)}{words}?", yes))
    return rng.choice(questions)


def texts() -> Iterator[str]:
    """Enough questions and answers to have every word."""
    rng = random.Random(0)
    for _ in range(5000):
        yield " ".join(ask(scene(rng, held_out=False), rng))
    yield from (f"{place}." for place in PLACES)

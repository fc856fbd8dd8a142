"""What drafting gains: generation with and without it, in turn, in one process.

    python benchmarks/drafting.py MODEL.gguf [--repeat 5] [--threads 1] [--tokens 256] [--json]
    python benchmarks/drafting.py MODEL.gguf --draft SMALLER.gguf --by ngram,draft,both
    python benchmarks/drafting.py MODEL.gguf --by layers
    python benchmarks/drafting.py MODEL.gguf --at-once 4
    WEFT_TARGET=avx2 python benchmarks/drafting.py MODEL.gguf

Models of random weights write nothing that could be drafted. So except for "greedy" the text is
given: the model computes every batch as always, and in place of the sampler's choice the next token
of the given text is drawn (the sampler's work is done, too). How many drafts are right is then that
of the text, and all times are real. Words, numbers, marks and indents of the texts are tokens.

edit    the answer repeats a program of the prompt and changes some of its lines
json    the answer repeats a JSON document of the prompt and changes some of its values
prose   the answer is a page of documentation, the prompt another one
random  no token of the answer can be foreseen
greedy  what the model itself writes

With --at-once several texts of a kind are written together, and their drafts are checked in one
batch. A model or layers that draft guess what they would write themselves. So they gain in "greedy"
if they write like the model, and the others show what guesses that are always wrong cost.

Times are processor time of all threads, so that other processes count little, from the first token
on; the ratio is the median of the ratios of neighbours. Drafting decides by such times, too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from time import process_time

from weft.frontends.gguf import open_gguf
from weft.llm import Context, DraftOptions, Model, SamplingParams, Tokenizer
from weft.llm.drafting.drafting import Drafting
from weft.llm.engine import writer as writer_module
from weft.llm.engine.growth import Growth
from weft.llm.engine.request import Request, Ticket
from weft.llm.engine.writer import Writer
from weft.llm.opening import DraftModels
from weft.llm.planning.draft_options import MOST, P_MIN
from weft.llm.sampling import Sampler

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "serve_load.py"
PAGES = HERE / "../docs/threads.md", HERE / "../docs/serve.md"


class Given(Sampler):
    """Draws the tokens of a text, whatever the logits are."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(SamplingParams(temperature=0))
        self._text = iter(text)

    def sample(self, logits: object) -> int:
        super().sample(logits)  # type: ignore[arg-type]
        return next(self._text)


def main() -> None:
    writer_module.perf_counter = process_time  # type: ignore[assignment]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--texts", default="edit,json,prose,random,greedy")
    parser.add_argument("--at-once", type=int, default=1, help="texts that are written together")
    parser.add_argument("--draft", type=Path, help="a smaller model, which drafts")
    parser.add_argument("--by", default="ngram", help="ngram, draft, layers or both, or several")
    parser.add_argument("--p-min", type=float, default=P_MIN)
    parser.add_argument("--most", type=int, default=MOST, help="most tokens of a draft")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    file = open_gguf(args.model)
    model, tokenizer = Model(file), Tokenizer.from_gguf(file)
    texts = texts_of(model.config.n_vocab, args.tokens, min(2048, model.config.n_ctx_train))
    by, common = args.by.split(","), {"most": args.most, "p_min": args.p_min}
    each = {
        "ngram": DraftOptions(**common),
        "draft": DraftOptions(ngram=False, model=args.draft, **common),
        "layers": DraftOptions(ngram=False, layers=True, **common),
        "both": DraftOptions(model=args.draft, layers=args.draft is None, **common),
    }
    n_ctx = min(2048, model.config.n_ctx_train) * args.at_once
    context = Context(model, n_ctx, n_outputs=31, n_seq_max=args.at_once, n_threads=args.threads,
                      states=any(each[name].layers for name in by))  # fmt: skip
    for how, name in product(by, args.texts.split(",")):
        options = each[how]
        made = DraftModels(model, options).drafting(context)
        assert made is not None
        prompt, answer = texts[name]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.repeat + 1):
            one = context, tokenizer, prompt, answer, args.tokens, args.at_once
            plain, _ = written(*one, None)
            with_drafts, growths = written(*one, made)
            times[0].append(plain)
            times[1].append(with_drafts)
        n_tokens = args.tokens * args.at_once
        plain, drafted = (statistics.median(t[1:]) / n_tokens for t in times)
        n_drafted = sum(growth.n_drafted for growth in growths)
        n_accepted = sum(growth.n_accepted for growth in growths)
        ratio = statistics.median(a / b for a, b in zip(times[0][1:], times[1][1:], strict=True))
        row = {"model": args.model.name, "by": how, "text": name, "plain_tps": 1 / plain,
               "drafting_tps": 1 / drafted, "ratio": ratio, "drafted": n_drafted,
               "accepted": n_accepted, "tokens": args.tokens, "at_once": args.at_once}  # fmt: skip
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            print(f"{how:6} {name:7} plain {1 / plain:8.1f} tokens/s   drafting "
                  f"{1 / drafted:8.1f}   {ratio:5.2f}x   {n_accepted} of {n_drafted} drafted "
                  "tokens right", flush=True)  # fmt: skip


def written(context: Context, tokenizer: Tokenizer, prompt: list[int], answer: list[int], n: int,
            at_once: int, drafts: Drafting | None) -> tuple[float, list[Growth]]:  # fmt: skip
    """Seconds from the first token of all texts to the last, and the counters of the texts.
    Drafting starts knowing nothing, as in a new process."""
    drafting = None
    if drafts is not None:
        drafting = Drafting(drafts.drafters, drafts.n_vocab, most=drafts.most, least=drafts.least,
                            clock=process_time)  # fmt: skip
    writer = Writer(context, tokenizer, drafting=drafting, prompt_share=context.n_batch)
    request = Request(tuple(prompt), max_tokens=n, sampling=SamplingParams(temperature=0),
                      ignore_eos=True)  # fmt: skip
    texts = [Ticket(request, tokenizer, lambda event: None) for _ in range(at_once)]
    for text in texts:
        if answer:
            text.growth._sampler = Given(answer)
        writer.add(text)
    while not all(text.growth.n_drawn for text in texts):
        writer.step()
    start = process_time()
    while writer.step():
        pass
    seconds = process_time() - start
    if drafting is not None:
        for seq in range(at_once):
            drafting.forget(seq)
    return seconds, [text.growth for text in texts]


def texts_of(n_vocab: int, n: int, n_ctx: int) -> dict[str, tuple[list[int], list[int]]]:
    """For each kind of text, the prompt and the answer."""
    numbers: dict[str, int] = {}
    most = max(n_ctx - n - 2, 16)

    def ids(text: str) -> list[int]:
        pieces = re.findall(r"\n *| ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]", text)
        return [10 + numbers.setdefault(p, len(numbers)) % (n_vocab - 10) for p in pieces]

    program = PROGRAM.read_text()
    changed = edited(program)
    prompt = ids("Rename Job to Request, and give every one a name.\n" + program)
    records = document({"name": "paper", "price": 12, "sold": True})
    pages = [ids(p.read_text()) for p in PAGES]
    rng = random.Random(1)
    noise = [rng.randrange(10, n_vocab) for _ in range(n + 300)]
    return {
        "edit": (prompt[:most], ids(changed)[:n]),
        "json": (ids("Raise the prices.\n" + records)[:most], ids(raised(records))[:n]),
        "prose": (pages[0][:most][:1200], pages[1][300 : 300 + n]),
        "random": (noise[n:][:most], noise[:n]),
        "greedy": (prompt[:most][:300], []),
    }


def edited(program: str) -> str:
    """The program after a change in about every eighth line."""
    for old, new in (
        ("Job", "Request"),
        ("SECONDS = 120.0", "SECONDS = 60.0"),
        ("SHORT, LONG = 24, 384", "SHORT, LONG = 32, 512"),
        ("prompt: list[int]", 'prompt: list[int]\n    name: str = ""'),
        ("import threading\n", "import threading\nimport time\n"),
        ("perf_counter", "monotonic"),
    ):
        program = program.replace(old, new)
    return program


def document(record: dict[str, object]) -> str:
    """A list of records as JSON."""
    names = ("paper", "ink", "pens", "folders", "stamps", "glue", "string", "tape", "labels")
    return json.dumps([record | {"id": i, "name": name} for i, name in enumerate(names)], indent=2)


def raised(records: str) -> str:
    """The document with another price in every record."""
    return re.sub(r'"price": (\d+)', lambda found: f'"price": {int(found[1]) + 3}', records)


if __name__ == "__main__":
    main()

"""What drafting gains: generation with and without it, in turn, in one process.

    python benchmarks/drafting.py MODEL.gguf [--repeat 5] [--threads 1] [--tokens 256] [--json]
    python benchmarks/drafting.py MODEL.gguf --draft SMALLER.gguf --by ngram,draft,both
    python benchmarks/drafting.py MODEL.gguf --by layers
    WEFT_TARGET=avx2 python benchmarks/drafting.py MODEL.gguf

Models of random weights write nothing that could be drafted. So except for "greedy" the text is
given: the model computes every batch as always, and in place of the sampler's choice the next token
of the given text is drawn (the sampler's work is done, too). How many drafts are right is then that
of the text, and all times are real. Words, numbers, marks and indents of the texts are tokens.

edit    the answer repeats a program of the prompt and changes some of its lines
prose   the answer is a page of documentation, the prompt another one
random  no token of the answer can be foreseen
greedy  what the model itself writes

A model or layers that draft guess what they would write themselves. So they gain in "greedy" if
they write like the model, and the others show what guesses that are always wrong cost.

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
PROGRAM = HERE / "../src/weft/llm/engine/batching.py"
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
    parser.add_argument("--texts", default="edit,prose,random,greedy")
    parser.add_argument("--draft", type=Path, help="a smaller model, which drafts")
    parser.add_argument("--by", default="ngram", help="ngram, draft, layers or both, or several")
    parser.add_argument("--p-min", type=float, default=P_MIN)
    parser.add_argument("--most", type=int, default=MOST, help="most tokens of a draft")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    file = open_gguf(args.model)
    model, tokenizer = Model(file), Tokenizer.from_gguf(file)
    texts = texts_of(model.config.n_vocab, args.tokens, model.config.n_ctx_train)
    by, common = args.by.split(","), {"most": args.most, "p_min": args.p_min}
    each = {
        "ngram": DraftOptions(**common),
        "draft": DraftOptions(ngram=False, model=args.draft, **common),
        "layers": DraftOptions(ngram=False, layers=True, **common),
        "both": DraftOptions(model=args.draft, layers=args.draft is None, **common),
    }
    context = Context(model, min(2048, model.config.n_ctx_train), n_outputs=31,
                      n_threads=args.threads,
                      states=any(each[name].layers for name in by))  # fmt: skip
    for how, name in product(by, args.texts.split(",")):
        options = each[how]
        made = DraftModels(model, options).drafting(context)
        assert made is not None
        prompt, answer = texts[name]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.repeat + 1):
            plain, _ = written(context, tokenizer, prompt, answer, args.tokens, None)
            with_drafts, growth = written(context, tokenizer, prompt, answer, args.tokens, made)
            times[0].append(plain)
            times[1].append(with_drafts)
        plain, drafted = (statistics.median(t[1:]) / args.tokens for t in times)
        ratio = statistics.median(a / b for a, b in zip(times[0][1:], times[1][1:], strict=True))
        row = {"model": args.model.name, "by": how, "text": name, "plain_tps": 1 / plain,
               "drafting_tps": 1 / drafted, "ratio": ratio, "drafted": growth.n_drafted,
               "accepted": growth.n_accepted, "tokens": args.tokens}  # fmt: skip
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            print(f"{how:6} {name:7} plain {1 / plain:8.1f} tokens/s   drafting {1 / drafted:8.1f} "
                  f"  {ratio:5.2f}x   {growth.n_accepted} of {growth.n_drafted} drafted tokens "
                  "right", flush=True)  # fmt: skip


def written(context: Context, tokenizer: Tokenizer, prompt: list[int], answer: list[int], n: int,
            drafts: Drafting | None) -> tuple[float, Growth]:  # fmt: skip
    """Seconds from the first token to the last, and the text's counters. Drafting starts knowing
    nothing, as in a new process."""
    drafting = None
    if drafts is not None:
        drafting = Drafting(drafts.drafters, drafts.n_vocab, most=drafts.most, least=drafts.least,
                            clock=process_time)  # fmt: skip
    writer = Writer(context, tokenizer, drafting=drafting, prompt_share=context.n_batch)
    request = Request(tuple(prompt), max_tokens=n, sampling=SamplingParams(temperature=0),
                      ignore_eos=True)  # fmt: skip
    text = Ticket(request, tokenizer, lambda event: None)
    if answer:
        text.growth._sampler = Given(answer)
    writer.add(text)
    while not text.growth.n_drawn:
        writer.step()
    start = process_time()
    while writer.step():
        pass
    seconds = process_time() - start
    if drafting is not None:
        drafting.forget(0)
    return seconds, text.growth


def texts_of(n_vocab: int, n: int, n_ctx: int) -> dict[str, tuple[list[int], list[int]]]:
    """For each kind of text, the prompt and the answer."""
    numbers: dict[str, int] = {}
    most = max(n_ctx - n - 2, 16)

    def ids(text: str) -> list[int]:
        pieces = re.findall(r"\n *| ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]", text)
        return [10 + numbers.setdefault(p, len(numbers)) % (n_vocab - 10) for p in pieces]

    program = PROGRAM.read_text()
    changed = edited(program)
    prompt = ids("Rename share to divide, and give every slot a weight.\n" + program)
    pages = [ids(p.read_text()) for p in PAGES]
    rng = random.Random(1)
    noise = [rng.randrange(10, n_vocab) for _ in range(n + 300)]
    return {
        "edit": (prompt[-most:], ids(changed)[:n]),
        "prose": (pages[0][:most][:1200], pages[1][300 : 300 + n]),
        "random": (noise[n:][:most], noise[:n]),
        "greedy": (prompt[:most][:300], []),
    }


def edited(program: str) -> str:
    """The program after a change in about every eighth line."""
    for old, new in (
        ("share", "divide"),
        ("wants", "wishes"),
        ("class Batch:", "class Batch:  # one step"),
        ("slot.n_left", "slot.weight * slot.n_left"),
        ("room = most - len(batch.tokens)", "room = max(most - len(batch.tokens), 0)"),
    ):
        program = program.replace(old, new)
    return program


if __name__ == "__main__":
    main()

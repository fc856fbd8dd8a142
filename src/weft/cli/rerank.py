"""`weft rerank` sorts documents by how well they answer a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import CountProgress
from weft.cli.embed import context_for
from weft.cli.loading import Untuned, loads_model, open_with
from weft.cli.model_file import ModelFile
from weft.cli.text_input import read_text
from weft.errors import ContextError
from weft.llm import Tokenizer
from weft.llm.compute.embed import best_first, pair_ids, rank_pairs, require_ranks


@loads_model
def rerank(
    *,
    model: ModelFile,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="What the documents should answer.")
    ],
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOCUMENT]", help="Without: lines of stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Documents, one a line.")
    ] = None,
    top_n: Annotated[
        int | None,
        typer.Option("--top-n", metavar="N", min=1, help="Print only so many, the best ones."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what POST /v1/rerank answers.")
    ] = False,
    load: Annotated[dict[str, Any], Untuned],
) -> None:
    """Sort documents by how well they answer a query. Prints the score, the index from 0 and the
    document, the best one first; it needs a reranker."""
    if documents and file is not None:
        raise ContextError("give documents or --file, not both")
    texts = documents or [line for line in read_text(None, file).splitlines() if line.strip()]
    if not texts:
        raise ContextError("there is no document; give some as arguments, with --file or on stdin")
    loaded = open_with(model, load)
    require_ranks(loaded.config, model.name)
    tokenizer = Tokenizer.from_gguf(loaded.file)
    pairs = [pair_ids(tokenizer, query, text) for text in texts]
    context = context_for(loaded, load, [len(ids) for ids in pairs])
    with CountProgress("ranking documents") as progress:
        rows = best_first(rank_pairs(context, pairs, progress), top_n)
    if as_json:
        n = sum(len(ids) for ids in pairs)
        usage = {"prompt_tokens": n, "total_tokens": n}
        results = [row.as_json() for row in rows]
        answer = {"model": model.name, "object": "list", "usage": usage, "results": results}
        print(json.dumps(answer))
        return
    for row in rows:
        print(f"{row.relevance_score:10.4f}  {row.index:>4}  {texts[row.index]}")

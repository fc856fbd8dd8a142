"""References of architectures: the data, the sentence and the page agree."""

from __future__ import annotations

import json

from tests.cli.in_process import weft as command
from tests.held import DATA, PAGE, page
from tests.llm.tiny import metadata, write_model
from weft.frontends.held import REFERENCES, held, in_words
from weft.llm.models import ARCHITECTURES


def test_the_page_is_made_of_the_data() -> None:
    rows = json.loads(DATA.read_text("utf-8"))
    assert PAGE.read_text("utf-8") == page(rows)
    assert set(rows) <= {*ARCHITECTURES} and len(rows) > 120
    assert all(row["scenarios"] or any(row.get(name) for name in REFERENCES)
               for row in rows.values())  # fmt: skip
    assert sum("transformers" in row for row in rows.values()) > 80


def test_in_words(tmp_path) -> None:  # type: ignore[no-untyped-def]
    said = in_words("llama")
    assert said.startswith("llama was held against golden files of llama.cpp (")
    assert "scenarios)" in said and "transformers (" in said and held()["llama"].against["golden"]
    assert in_words("nothing") == ""
    path = write_model(tmp_path / "m.gguf", metadata())
    assert said in " ".join(command("inspect", path, "--no-tensors").stdout.split())

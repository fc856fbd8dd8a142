"""The vocabulary that grammars of answers are held to."""

from __future__ import annotations

import pytest

from tests.llm.answers.grammars import with_controls
from weft.llm import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A small vocabulary with the control tokens of calls."""
    return with_controls(tmp_path_factory.mktemp("controls"))

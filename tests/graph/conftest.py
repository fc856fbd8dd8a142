"""Puts `tests/` on the path, so that the readers of the golden vectors can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

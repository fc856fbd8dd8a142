"""What clients sent, kept without what identifies a machine and without their long texts.

WEFT_RECORD_CLIENTS=tests/clients/requests.json make test-all PART=clients TEST_OPTIONS="-n 0"
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LONGEST = 60
"""Characters of a text that is kept as it is."""
N_TOOLS = 3
"""Tools of a request that are kept."""
HEADERS = ("accept", "authorization", "content-type", "x-api-key")


def keep(client: str, noted: list[dict[str, Any]], home: Path) -> None:
    """Writes the requests of a client, whose home was `home`, into the file that
    WEFT_RECORD_CLIENTS names, if it does."""
    where = os.environ.get("WEFT_RECORD_CLIENTS")
    if where is None:
        return
    path = Path(where)
    all_kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    all_kept[client] = [
        {
            "method": request["method"],
            "path": request["path"],
            "headers": {name: value for name, value in request["headers"].items()
                        if name.lower() in HEADERS or name.lower().startswith("anthropic-")},
            "body": _shortened(request["body"]),
            "ignored": request["ignored"],
            "status": request["status"],
        }
        for request in noted
    ]  # fmt: skip
    text = json.dumps(dict(sorted(all_kept.items())), indent=1, ensure_ascii=False)
    path.write_text(text.replace(str(home), "/home/user") + "\n", "utf-8")


def _shortened(value: Any) -> Any:
    """A body with the first tools alone, and the lengths of long texts in their place."""
    if isinstance(value, dict):
        return {
            key: _shortened(each[:N_TOOLS] if key == "tools" and isinstance(each, list) else each)
            for key, each in value.items()
            if key != "pattern"
        }
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if isinstance(value, str) and len(value) > LONGEST:
        return f"A text of {len(value)} characters."
    return value

"""Bodies with files, `multipart/form-data`."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from fastapi import Request
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from weft.serve.errors import ApiError

__all__ = ["read_form"]

MOST_FIELDS = 32
"""Most fields of a form besides its file."""
LONGEST_FIELD = 1 << 16
"""Most bytes of a field that is no file; files are bounded by the whole body."""


async def read_form(http: Request) -> FormData:
    """The fields and at most one file of a body. Raises ApiError for a body that is none."""
    kind = http.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise ApiError(
            400, "the body is no form with a file; send one, as multipart/form-data", "file"
        )
    if find_spec("python_multipart") is None:
        raise ApiError(
            501, "files in requests need python-multipart; install it on the server: "
            "pip install 'weft[serve]'", "file", "unsupported",
        )  # fmt: skip
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the answer says it
    try:
        return await http.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=LONGEST_FIELD)
    except HTTPException as error:
        raise ApiError(400, f"the form cannot be read: {error.detail}") from None

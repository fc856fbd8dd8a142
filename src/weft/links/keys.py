"""The key that machines share: 32 random bytes, as 64 hexadecimal digits in a file."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from weft.errors import LinkError, MissingFileError

KEY_BYTES = 32
NO_KEY = bytes(KEY_BYTES)
"""The key of both sides if neither was given one, which is allowed for loopback alone."""


def make_key() -> bytes:
    """A fresh key from the system's random numbers."""
    return secrets.token_bytes(KEY_BYTES)


def write_key(path: str | os.PathLike[str]) -> bytes:
    """Makes a key and writes it to a new file that only its owner may read.

    Raises LinkError where the file exists, as a worker may be using it."""
    key = make_key()
    try:
        at = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise LinkError(
            f"{os.fspath(path)}: this file exists; a key is never overwritten"
        ) from None
    except OSError as error:
        raise LinkError(f"{os.fspath(path)}: cannot write a key there: {error}") from error
    with os.fdopen(at, "w") as file:
        file.write(key.hex() + "\n")
    return key


def read_key(path: str | os.PathLike[str]) -> bytes:
    """The key in a file; raises LinkError where it has none, or others may read the file."""
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            text = file.read(4096)
            mode = os.fstat(file.fileno()).st_mode
    except FileNotFoundError:
        raise MissingFileError(
            f"{name}: there is no such key file; `weft worker --make-key {name}` makes one"
        ) from None
    except OSError as error:
        raise LinkError(f"{name}: cannot read this key file: {error}") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LinkError(f"{name}: other users may open this key file; chmod 600 {name}")
    return key_from_text(text.decode("ascii", "replace"), name)


def key_from_text(text: str, source: str) -> bytes:
    """The key that 64 hexadecimal digits are; raises LinkError, naming `source`, never the key."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise LinkError(
            f"{source}: this is not a key of {2 * KEY_BYTES} hexadecimal digits; "
            "`weft worker --make-key FILE` makes one"
        )
    return key

"""The program of the process in which the package `tokenizers` encodes texts.

A tokenizer.json may hold regexes that take hours and steps that make a text a million times as
long, and the package holds Python's lock meanwhile. Here that ends only this program, by the limits
that it is given. It imports nothing of weft, so that it starts at once.

Arguments: the folder that has the package, and the maximum number of bytes of address space. On
standard input and output are messages of JSON, each behind the eight bytes of its length:

    {"key", "seconds" of a processor, and
     "tokenizer": its JSON, and "special": true for texts without special tokens; or
     "text", with "special": true where the package adds tokens; or
     "named": ids of tokens}
    {"answer": ids, or the texts of tokens} or {"error": why there is none}
"""

from __future__ import annotations

import json
import os
import signal
import sys
from math import ceil
from typing import Any, BinaryIO


def _read(file: BinaryIO) -> Any:
    """The next message; None at the end."""
    head = file.read(8)
    if len(head) < 8:
        return None
    return json.loads(file.read(int.from_bytes(head, "little")))


def _write(file: BinaryIO, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def _bound(seconds: int, memory: int) -> None:
    """Sets the limits of the system for the next message, where the system has them."""
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = ceil(used.ru_utime + used.ru_stime + seconds)
    limits = [(resource.RLIMIT_CPU, soft), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)]
    for what, limit in limits:
        try:
            resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))
        except (OSError, ValueError):
            pass


def main() -> None:
    """Answers messages until standard input ends."""
    folder, memory = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.path.append(folder)
    from tokenizers import Tokenizer

    made: dict[str, Any] = {}

    def answer(message: dict[str, Any]) -> Any:
        key = message["key"]
        if "tokenizer" in message:
            made[key] = Tokenizer.from_str(message["tokenizer"])
            made[key].encode_special_tokens = message["special"]
            return []
        if "named" in message:
            return [made[key].id_to_token(id_) for id_ in message["named"]]
        return made[key].encode(message["text"], add_special_tokens=message["special"]).ids

    while (message := _read(sys.stdin.buffer)) is not None:
        _bound(message["seconds"], memory)
        try:
            found = {"answer": answer(message)}
        except BaseException as error:  # the library raises Exception, or panics
            found = {"error": str(error)[:1000]}
        _write(sys.stdout.buffer, found)


if __name__ == "__main__":
    main()

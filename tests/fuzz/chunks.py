"""Bodies in chunks, well formed and damaged, in pieces of any length: what is read is what was
sent, in a number of chunks that is bounded."""

from __future__ import annotations

import random
from pathlib import Path

import h11

from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.rounds import Round
from weft.bounds import CHUNK_BYTES, CHUNKS
from weft.serve.connections import _Framing, _RefusedError

NATIVE = False

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def body(rng: random.Random) -> tuple[bytes, bytes, int]:
    """A body on the wire, what it has, and its number of chunks."""
    sizes = [rng.choice((1, 1, 16, 127, 128, 5000)) for _ in range(rng.choice((0, 1, 3, 40)))]
    sizes *= rng.choice((1, 1, 1, 1, 300, 1000))
    sizes = sizes[:20_000]
    extension = rng.choice((b"", b"", b";a", b';a="b"', b";" + b"x" * 1000))
    zeros = b"0" * rng.choice((0, 0, 1, 10))
    data = [rng.randbytes(1) * size for size in sizes]
    wire = b"".join(b"%s%x%s\r\n%s\r\n" % (zeros, len(d), extension, d) for d in data)
    trailer = b"a: b\r\n" * rng.choice((0, 0, 1, 50))
    return wire + b"0\r\n" + trailer + b"\r\n", b"".join(data), len(data)


def prepare(folder: Path) -> Round:
    """The parser of a connection."""

    def one(rng: random.Random) -> str:
        wire, content, n_chunks = body(rng)
        coding = rng.choice((b"chunked", b"chunked", b"chunked", b"Chunked", b"gzip, chunked"))
        head = HEAD + b"Transfer-Encoding: %s\r\n" % coding
        twice = rng.randrange(10) == 0
        head += b"Content-Length: %d\r\n" % len(content) if twice else b""
        sent = bytearray(head + b"\r\n" + wire)
        whole = bytes(sent)
        if rng.randrange(2):
            mutate_bytes(sent, rng, [(len(HEAD), len(sent))])
        framing = _Framing(h11.SERVER, max_incomplete_event_size=1 << 16)
        step = max(rng.choice((7, 100, 1 << 16)), len(sent) // 2000)
        read, n_read = bytearray(), 0
        try:
            for at in range(0, len(sent), step):
                framing.receive_data(bytes(sent[at : at + step]))
                while (event := framing.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                    if isinstance(event, h11.Data):
                        read += event.data
                        n_read += event.chunk_start
                        assert n_read <= CHUNKS + len(read) // CHUNK_BYTES
                    if isinstance(event, h11.EndOfMessage):
                        assert not twice or sent != whole
                        if sent == whole:
                            # h11 hides the start of a chunk whose length ends a piece
                            assert read == content and n_read <= n_chunks
                        return "read"
        except _RefusedError as error:
            few = n_chunks <= CHUNKS
            assert twice or not few or sent != whole, error
            return "refused"
        except h11.RemoteProtocolError:
            assert sent != whole or coding == b"gzip, chunked" or b"x" * 1000 in whole
            return "malformed"
        assert sent != whole
        return "cut off"

    return one

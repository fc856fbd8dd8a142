"""What may come over a socket of a link: from strangers (handshakes that are none), from somebody
in the network (records that were changed, cut, repeated or moved), and from a peer that knows the
key and sends frames that break every rule. Each is a frame, or a LinkError within its time, and
takes no more memory than the bounds say."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from pathlib import Path

from tests.fuzz.mutate import WORDS, as_json, mutate_bytes, mutate_json
from tests.fuzz.rounds import Round
from weft.errors import LinkError
from weft.links import Limits, Link, handshake
from weft.links.sealed import TAG, HalfExchange, Opener, Sealer, derive
from weft.links.stream import TimedOut

NATIVE = False

KEY = bytes(range(32))
LIMITS = Limits(header=1 << 20, arrays=64, frame=1 << 22, allocated=1 << 21, silence=2.0)
HEADERS = [{}, {"n": 1, "c": [["alloc", 1, 0, 64]], "a": 2}, {"hello": "client"}, {"a": "é" * 99}]


def prepare(folder: Path) -> Round:
    """A round is one conversation."""
    rounds = {"stranger": stranger, "changed": changed, "liar": liar}

    def one(rng: random.Random) -> str:
        name = rng.choice([*rounds])
        return f"{name}: {rounds[name](rng)}"

    return one


def run(seed: int, n: int) -> int:
    """Tries `n` conversations; returns how many had a frame that was taken."""
    one, rng = prepare(Path()), random.Random(seed)
    return sum(one(rng).endswith("taken") for _ in range(n))


def stranger(rng: random.Random) -> str:
    """A client whose handshake is wrong somewhere."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        half = HalfExchange()
        hello = bytearray(handshake._HELLO.pack(b"weftlink", 1, 0, rng.randbytes(32), half.public))
        kind = rng.randrange(4)
        if kind == 0:
            mutate_bytes(hello, rng)
        elif kind == 1:
            hello = bytearray(rng.randbytes(rng.randrange(300)))
        data = bytes(hello[: rng.choice([len(hello), len(hello), rng.randrange(len(hello) + 1)])])
        ours.sendall(data + rng.randbytes(rng.choice([0, 1, 31, 32, 33, 500])))
        ours.shutdown(socket.SHUT_WR)
        began = time.monotonic()
        try:
            handshake.greet_client(theirs, "fuzz", KEY, {}, began + 1.0, LIMITS)
        except (LinkError, OSError):
            assert time.monotonic() - began < 2, "a handshake outlived its time"
            return "refused"
    raise AssertionError("a stranger has a link")


def _ends() -> tuple[Link, Link]:
    ours, theirs = socket.socketpair()
    one, two = derive(KEY, b"1"), derive(KEY, b"2")
    near = Link(ours, "near", Sealer(one), Opener(two), Limits(silence=2.0))
    return near, Link(theirs, "far", Sealer(two), Opener(one), LIMITS)


def _frames(link: Link) -> str:
    """What comes until the link ends."""
    taken = 0
    while True:
        try:
            header, arrays = link.receive(1.0)
        except TimedOut:
            raise AssertionError("the link waits for what cannot come") from None
        except LinkError:
            assert link.closed
            return "taken" if taken else "refused"
        assert isinstance(header, dict)
        assert sum(a.nbytes for a in arrays) <= LIMITS.allocated
        taken += 1


def changed(rng: random.Random) -> str:
    """Good frames that somebody in the network changes."""
    near, far = _ends()
    tap, into = socket.socketpair()
    with near, far, tap, into:
        records: list[bytearray] = []
        sealer = Sealer(derive(KEY, b"1"))
        for _ in range(rng.randrange(1, 4)):
            arrays = [rng.randbytes(rng.choice([0, 1, 100, 5000])) for _ in range(rng.randrange(3))]
            text = json.dumps(rng.choice(HEADERS)).encode()
            sizes = struct.pack(f"<{len(arrays)}Q", *map(len, arrays))
            parts = [struct.pack("<B3xII", 0, len(arrays), len(text)), sizes + text, *arrays]
            for part in parts:
                if part:
                    record = bytearray(len(part) + TAG)
                    sealer.seal(part, memoryview(record))
                    records.append(record)
        kind = rng.randrange(6)
        if kind == 0:
            mutate_bytes(rng.choice(records), rng)
        elif kind == 1:
            records.insert(rng.randrange(len(records)), rng.choice(records))
        elif kind == 2:
            del records[rng.randrange(len(records))]
        elif kind == 3:
            rng.shuffle(records)
        elif kind == 4:
            del records[-1][rng.randrange(len(records[-1])) :]
        near._sock.sendall(b"".join(records))
        near._sock.shutdown(socket.SHUT_WR)
        return _frames(far)


def liar(rng: random.Random) -> str:
    """Frames of a peer that has the key."""
    near, far = _ends()
    with near, far:
        for _ in range(rng.randrange(1, 4)):
            header = json.loads(json.dumps(rng.choice(HEADERS)))
            if rng.random() < 0.5:
                header = mutate_json(header, rng)
            text = as_json(header).encode("utf-8", "surrogatepass")
            if rng.random() < 0.2:
                deep = 20_000
                text = rng.choice(
                    [b"[" * deep, b'{"a":' * deep, b"\xff", b"", b"null", b"1" * 5000]
                )
            sizes = [rng.choice([0, 1, 64, *WORDS]) for _ in range(rng.choice([0, 0, 1, 2, 70]))]
            if rng.random() < 0.6:
                sizes = [min(n, 5000) for n in sizes]
            n_text = rng.choice([len(text)] * 6 + [n & 0xFFFFFFFF for n in WORDS[:3]])
            n_arrays = rng.choice([len(sizes)] * 6 + [rng.choice(WORDS) & 0xFFFFFFFF])
            kind = rng.choice([0] * 8 + [1, 2, 3, rng.randrange(256)])
            near._seal(struct.pack("<B3xII", kind, n_arrays, n_text))
            near._seal(struct.pack(f"<{len(sizes)}Q", *sizes) + text or b"x")
            for n in sizes:
                if 0 < n <= 5000:
                    near._seal(rng.randbytes(n))
        try:
            near._flush()
            near._sock.shutdown(socket.SHUT_WR)
        except (OSError, LinkError):
            pass
        return _frames(far)

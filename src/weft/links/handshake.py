"""Both sides prove that they know the key, agree on fresh keys, and compare what they are.

    client -> server   magic, protocol, nonce, public part of an exchange
    server -> client   the same of its own, and its proof
    client -> server   its proof
    both, sealed       facts: weft's version and what callers add, e.g. the stamp of the op table

A proof is HMAC-SHA256 over the role and all that was said before, under the shared key. The keys of
the two directions follow from the shared key, what was said, and an exchange (X25519) made for this
connection: a key that leaks later opens no recording. Before its proof is checked, a peer can make
the other side hold 76 bytes, for the time limit of the handshake.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Mapping

from weft.errors import LinkError
from weft.links.keys import NO_KEY
from weft.links.link import Limits, Link
from weft.links.sealed import HalfExchange, Opener, Sealer, derive
from weft.links.stream import TimedOut, exactly
from weft.version import __version__

PROTOCOL = 1
"""The number of this protocol; it changes with what frames or handshakes are."""
_MAGIC = b"weftlink"
_HELLO = struct.Struct("<8sHH32s32s")
_PROOF = 32
_FACTS = 32
"""Maximum number of facts that a side may state."""


def greet_server(
    sock: socket.socket,
    peer: str,
    key: bytes,
    facts: Mapping[str, str],
    until: float,
    limits: Limits | None = None,
) -> Link:
    """The client's side of a handshake, until a time of `time.monotonic`."""
    half, mine = _hello()
    sock.sendall(mine)
    theirs = exactly(sock, _HELLO.size, until)
    public = _public(theirs, peer)
    said = hashlib.sha256(mine + theirs).digest()
    proof = exactly(sock, _PROOF, until)
    if not hmac.compare_digest(proof, derive(key, b"server", said)):
        raise LinkError(_wrong_key(peer, key, proof, said))
    sock.sendall(derive(key, b"client", said))
    master = derive(key, b"master", said, half.shared(public))
    link = _link(sock, peer, master, (b"to server", b"to client"), limits)
    _same_facts(link, facts, until)
    return link


def greet_client(
    sock: socket.socket,
    peer: str,
    key: bytes,
    facts: Mapping[str, str],
    until: float,
    limits: Limits | None = None,
) -> Link:
    """The server's side of a handshake, until a time of `time.monotonic`."""
    theirs = exactly(sock, _HELLO.size, until)
    if not theirs.startswith(_MAGIC):
        raise LinkError(f"{peer} is not weft: it began with {theirs[:8]!r}")
    half, mine = _hello()
    said = hashlib.sha256(theirs + mine).digest()
    sock.sendall(mine + derive(key, b"server", said))
    public = _public(theirs, peer)
    try:
        proof = exactly(sock, _PROOF, until)
    except TimedOut:
        raise
    except LinkError:
        what = "no key" if key == NO_KEY else "a key"
        raise LinkError(
            f"{peer} ended the connection before it proved that it knows the key: this worker has "
            f"{what}, and the other side probably another one or none"
        ) from None
    if not hmac.compare_digest(proof, derive(key, b"client", said)):
        raise LinkError(f"{peer} does not know the key")
    master = derive(key, b"master", said, half.shared(public))
    link = _link(sock, peer, master, (b"to client", b"to server"), limits)
    _same_facts(link, facts, until)
    return link


def _wrong_key(peer: str, key: bytes, proof: bytes, said: bytes) -> str:
    """Says which side lacks the key, where one has none."""
    if key == NO_KEY:
        return (
            f"{peer} has a key, and this side was given none: give --machine-key-file FILE, or "
            "WEFT_MACHINE_KEY"
        )
    if hmac.compare_digest(proof, derive(NO_KEY, b"server", said)):
        return (
            f"{peer} has no key, and this side has one: start that worker with "
            "--machine-key-file FILE, or leave the key out here"
        )
    return (
        f"{peer} does not know this key: both sides need the same key file, or the same "
        "WEFT_MACHINE_KEY"
    )


def _hello() -> tuple[HalfExchange, bytes]:
    half = HalfExchange()
    return half, _HELLO.pack(_MAGIC, PROTOCOL, 0, secrets.token_bytes(32), half.public)


def _public(hello: bytes, peer: str) -> bytes:
    magic, protocol, _, _, public = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise LinkError(f"{peer} is not weft: it answered with {magic!r}")
    if protocol != PROTOCOL:
        raise LinkError(
            f"{peer} speaks version {protocol} of weft's link protocol, this side version "
            f"{PROTOCOL}: install the same weft on both"
        )
    return bytes(public)


def _link(
    sock: socket.socket,
    peer: str,
    master: bytes,
    directions: tuple[bytes, bytes],
    limits: Limits | None,
) -> Link:
    out, into = directions
    return Link(sock, peer, Sealer(derive(master, out)), Opener(derive(master, into)), limits)


def _same_facts(link: Link, facts: Mapping[str, str], until: float) -> None:
    """Tells the other side what this one is and refuses it where it differs."""
    mine = {"weft": __version__, **facts}
    link.send({"facts": mine})
    header, arrays = link.receive(max(until - time.monotonic(), 0.001))
    theirs = header.get("facts")
    if arrays or not isinstance(theirs, dict) or len(theirs) > _FACTS:
        raise LinkError(f"{link.peer} did not say what it is")
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = mine.get(name, "none"), str(theirs.get(name, "none"))[:200]
        if here != there:
            why = f"{link.peer} has {name} {there}, this side has {name} {here}"
            link.close(f"it has {name} {here}, this side has {name} {there}")
            raise LinkError(f"{why}: install the same weft on both")
    link.facts = {name: str(value) for name, value in theirs.items()}

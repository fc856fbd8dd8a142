"""Records that cannot be read or changed on the way: AES-256-GCM, numbered.

The number of a record in its direction is its nonce. So a record that was changed, repeated, left
out or moved fails its check, as does one of another connection, whose keys are others.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

from weft.errors import LinkError
from weft.extras import how_to_install

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG = 16
"""Number of bytes by which a record is longer than its contents."""


def _ciphers() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError as error:
        raise LinkError(
            f"links between machines need the package cryptography; {how_to_install('machines')}"
        ) from error
    return aead


def derive(key: bytes, *parts: bytes) -> bytes:
    """32 bytes that follow from `key` and the parts, each with its length."""
    text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.digest(key, text, hashlib.sha256)


class HalfExchange:
    """Half of a key exchange (X25519), made anew for each connection."""

    def __init__(self) -> None:
        _ciphers()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()
        """32 bytes for the other side."""

    def shared(self, public: bytes) -> bytes:
        """The secret of both sides, 32 bytes; it does not follow from the public parts.

        Raises LinkError where `public` is none of a peer that follows the protocol."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise LinkError(f"the key exchange failed: {error}") from error


class _Numbered:
    def __init__(self, key: bytes) -> None:
        self._cipher: AESGCM = _ciphers().AESGCM(key)
        self._number = 0

    def _nonce(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "little")


class Sealer(_Numbered):
    """Makes the records of one direction; for one thread at a time."""

    def seal(self, contents: memoryview | bytes, into: memoryview) -> None:
        """Writes a record to `into`, whose size is the size of the contents plus TAG."""
        self._cipher.encrypt_into(self._nonce(), contents, None, into)


class Opener(_Numbered):
    """Checks the records of one direction, in order; for one thread at a time."""

    def open(self, record: memoryview, into: memoryview) -> None:
        """Writes the contents to `into`; raises LinkError where the record is not the next one."""
        from cryptography.exceptions import InvalidTag

        try:
            self._cipher.decrypt_into(self._nonce(), record, None, into)
        except InvalidTag:
            raise LinkError(
                "a record fails its check: it was changed, repeated or left out on the way"
            ) from None

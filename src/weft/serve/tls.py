"""TLS of the server: the certificate and its key, which can be read again while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

from weft.errors import ContextError

__all__ = ["Tls"]


class Tls:
    """The settings that new connections use: TLS 1.2 or newer, HTTP/1.1."""

    def __init__(self, key: Path, certificate: Path) -> None:
        """Reads both files, in PEM format. Raises ContextError if that fails or they do not belong
        together."""
        self._key, self._certificate = key, certificate
        self.context = self._read()
        """For new connections."""

    def reload(self) -> None:
        """Reads the files again. Open connections keep what they have. Raises ContextError if that
        fails; new connections get the old certificate then."""
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        for flag, path in (("--ssl-key-file", self._key), ("--ssl-cert-file", self._certificate)):
            try:
                with path.open("rb"):
                    pass
            except OSError as error:
                raise ContextError(f"{flag} {path}: {error.strerror or error}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # a key with a password is refused: nobody is there to type it
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (ssl.SSLError, _PasswordError) as error:
            why = str(error) if isinstance(error, _PasswordError) else error.reason or str(error)
            raise ContextError(
                f"--ssl-cert-file {self._certificate} with --ssl-key-file {self._key}: "
                f"{why.lower().replace('_', ' ')}; both are PEM files, of one another"
            ) from None
        return context


class _PasswordError(Exception):
    pass


def _no_password() -> str:
    raise _PasswordError("the key has a password; write it without one")

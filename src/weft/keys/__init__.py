"""Who may use a server: keys with names, limits and usage.

store.py    keys in an SQLite file: added, listed, revoked, and what they have used
ring.py     finds the key that a client sends, in constant time
limits.py   requests per minute, tokens per day, requests at a time
usage.py    writes what requests used, before their answers end

Keys are random; a file has their hashes alone, and a key is shown once, when it is added.
"""

from weft.keys.limits import LimitError, Limits
from weft.keys.ring import KeyRing
from weft.keys.store import Key, KeyStore, Used, new_secret
from weft.keys.usage import UsageWriter

__all__ = ["Key", "KeyRing", "KeyStore", "LimitError", "Limits", "UsageWriter", "Used",
           "new_secret"]  # fmt: skip

"""Connections between machines: authenticated, encrypted sockets that carry arrays.

- `ends.py`: `connect` and `Listener`, the two ends.
- `link.py`: `Link`, frames of a header and arrays, with heartbeats.
- `handshake.py`: both sides prove that they know the key and are the same weft.
- `sealed.py`: records that nobody can read or change on the way.
- `keys.py`: keys in files. `addresses.py`: HOST:PORT.
- `speed.py`: how fast a link is, and a warning where it is slower than it was.
"""

from weft.lazy import imported_when_used

__all__ = ["Address", "Limits", "Link", "Listener", "connect"]

__getattr__, __dir__ = imported_when_used(
    __name__,
    {
        "weft.links.addresses": ("Address",),
        "weft.links.ends": ("Listener", "connect"),
        "weft.links.link": ("Limits", "Link"),
    },
)

"""Links: what goes over them, and everything that a stranger, a liar or a dead peer may do."""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import eventually
from tests.worker_processes import Proxy
from weft.errors import ArgumentError, LinkError, MissingFileError
from weft.links import Limits, Link, Listener, connect
from weft.links import handshake as handshake_module
from weft.links import link as link_module
from weft.links.addresses import Address, is_loopback, parse_address
from weft.links.ends import HALF_OPEN
from weft.links.keys import key_from_text, make_key, read_key, write_key
from weft.links.link import PIECE
from weft.links.sealed import derive
from weft.links.speed import Speed, SpeedWatch, measure
from weft.links.stream import Incoming, TimedOut
from weft.version import __version__

KEY = bytes(range(32))


@contextmanager
def pair(**limits: Any) -> Iterator[tuple[Link, Link]]:
    """Both ends of a link."""
    with (
        Listener(key=KEY, limits=Limits(**limits)) as listener,
        connect(listener.address, key=KEY, limits=Limits(**limits)) as near,
        listener.accept(5) as far,
    ):
        yield near, far


@contextmanager
def listening(**more: Any) -> Iterator[tuple[Listener, list[str]]]:
    """A listener and the reasons of its refusals."""
    why: list[str] = []
    with Listener(**{"key": KEY, "on_refused": why.append, **more}) as listener:
        yield listener, why


# ---- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[], [0], [1], [PIECE, PIECE + 1, 0, 3], [5 * PIECE + 7]])
def test_frames_arrive_as_they_were_sent(sizes: list[int]) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 256, n, np.uint8) for n in sizes]
    header = {"words": "é", "n": [1, None, True, 2.5], "long": "x" * 600_000}
    with pair() as (near, far):
        thread = threading.Thread(target=near.send, args=(header, *arrays))
        thread.start()
        got, views = far.receive(5)
        thread.join()
    assert got == header
    assert [bytes(v) for v in views] == [a.tobytes() for a in arrays]


def test_arrays_of_any_type_are_sent_as_bytes() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pair() as (near, far):
        near.send({}, rows)
        _, (view,) = far.receive(5)
        assert np.frombuffer(view, np.float32).tolist() == rows.ravel().tolist()
        with pytest.raises((TypeError, BufferError)):
            near.send({}, rows[:, ::2])
        near.send({"n": 2})
        assert far.receive(5)[0] == {"n": 2}


def test_arrays_go_into_memory_of_the_receiver() -> None:
    room = np.zeros(10, np.uint8)
    with pair() as (near, far):
        near.send({"to": 3}, b"abcd")
        header, views = far.receive_into(lambda h, s: [room[h["to"] :].data], 5)
        assert header == {"to": 3}
        assert bytes(views[0]) == b"abcd"
        assert room.tobytes() == b"\0\0\0abcd\0\0\0"


def test_arrays_that_do_not_fit_the_memory_of_the_receiver() -> None:
    for room in ([bytearray(3)], [], [bytearray(4), bytearray(4)]):
        with pair() as (near, far):
            near.send({}, b"abcd")
            with pytest.raises(LinkError, match="which are not the expected"):
                far.receive_into(lambda h, s, room=room: [memoryview(r) for r in room], 5)  # type: ignore[misc]


def test_both_directions_and_many_threads() -> None:
    with pair() as (near, far):

        def echo() -> None:
            for _ in range(80):
                far.send(*_flat(far.receive(10)))

        def ask(n: int) -> None:
            for i in range(20):
                near.send({"n": n, "i": i}, bytes([n]) * (n * 1000))

        threads = [threading.Thread(target=echo)]
        threads += [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        seen = []
        for _ in range(80):
            header, (view,) = near.receive(10)
            assert bytes(view) == bytes([header["n"]]) * (header["n"] * 1000)
            seen.append((header["n"], header["i"]))
        for thread in threads:
            thread.join()
        assert sorted(seen) == [(n, i) for n in range(4) for i in range(20)]
        assert [s for s in seen if s[0] == 2] == [(2, i) for i in range(20)]


def _flat(frame: tuple[dict[str, Any], list[Any]]) -> list[Any]:
    return [frame[0], *frame[1]]


def test_bytes_are_counted() -> None:
    with pair() as (near, far):
        before = near.bytes_sent, far.bytes_received
        near.send({}, bytes(1000))
        far.receive(5)
        # prefix, table and array, each with its tag
        n = (12 + 16) + (8 + 2 + 16) + (1000 + 16)
        assert (near.bytes_sent - before[0], far.bytes_received - before[1]) == (n, n)


def test_timeouts_leave_the_link_as_it_was() -> None:
    with pair() as (near, far):
        with pytest.raises(TimedOut, match=near.peer.partition(":")[0]):
            far.receive(0.05)
        near.send({"n": 1})
        assert far.receive(5)[0] == {"n": 1}


def test_bounds_hold_for_both_sides() -> None:
    with pair(header=100, arrays=2, allocated=1000, frame=4000) as (near, far):
        for call in (
            lambda: near.send({"x": "y" * 100}),
            lambda: near.send({}, b"", b"", b""),
            lambda: near.send({}, bytes(4001)),
        ):
            with pytest.raises(LinkError, match="at most"):
                call()
        near.send({}, bytes(600), bytes(401))  # together
        with pytest.raises(LinkError, match="1001 bytes of arrays, more than the 1000"):
            far.receive(5)
        assert far.closed


def test_control_frames_are_short_and_have_no_arrays() -> None:
    for text, arrays in ((bytes(1025), []), (bytes(16), [memoryview(b"abc")])):
        with pair() as (near, far):
            near._frame(link_module._PONG, text, arrays)
            with pytest.raises(LinkError, match=f"a control frame of {len(text)} bytes"):
                far.receive(5)


def test_a_frame_beyond_the_receivers_bounds_ends_the_link() -> None:
    small = Limits(header=200)
    with (
        Listener(key=KEY, limits=small) as listener,
        connect(listener.address, key=KEY) as near,
        listener.accept(5) as far,
    ):
        near.send({"x": "y" * 1000})
        with pytest.raises(LinkError, match="at most 200"):
            far.receive(5)
        with pytest.raises(LinkError, match="closed the connection"):
            near.receive(5)


def test_deep_headers_are_refused() -> None:
    with pair() as (near, far):
        text = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        with near._sending:
            near._frame(0, text, [])
        with pytest.raises(LinkError):
            far.receive(5)


# ---- life and death ------------------------------------------------------------------------------


def test_a_wait_has_heartbeats_and_round_trips() -> None:
    with pair(ping=0.1) as (near, far):
        for link in (near, far):
            threading.Thread(target=_receive_quietly, args=(link,), daemon=True).start()
        near.ping()
        assert 0 < eventually(lambda: near.rtt) < 5
        assert eventually(lambda: far.rtt)
        assert abs(near.clock_offset_ns or 0) < 1e9  # one process, one clock


def _receive_quietly(link: Link) -> None:
    try:
        link.receive()
    except LinkError:
        return


def test_silence_is_the_end_and_named() -> None:
    with pair(silence=1.0) as (near, _far):
        with pytest.raises(LinkError, match=f"{near.peer}: it has said nothing for 1"):
            near.receive()  # nobody is in far.receive
        with pytest.raises(LinkError, match="said nothing"):
            near.send({})


def test_silence_adds_up_over_short_waits() -> None:
    with pair(silence=1.0) as (near, _far):
        for _ in range(20):
            try:
                near.receive(0.2)
            except TimedOut:
                continue
            except LinkError as error:
                assert "it has said nothing for" in str(error)
                return
    raise AssertionError("a silent peer counts as there")


class _Pauses:
    """A socket on which a byte comes after every two pauses of a tick."""

    def __init__(self) -> None:
        self._n = 0

    def settimeout(self, seconds: float) -> None:
        """Waits take no time here."""

    def recv_into(self, buffer: memoryview) -> int:
        self._n += 1
        if self._n % 3:
            raise TimeoutError
        buffer[:1] = b"x"
        return 1


def test_pauses_between_signs_of_life_do_not_add_up() -> None:
    incoming = Incoming(_Pauses(), 16, 1.0, lambda: None)  # type: ignore[arg-type]
    assert b"".join(bytes(incoming.need(1)) for _ in range(5)) == b"xxxxx"


def test_a_peer_that_takes_nothing_is_lost() -> None:
    with pair(silence=1.0) as (near, _), pytest.raises(LinkError, match="has taken nothing for"):
        near.send({}, bytes(64 << 20))


def test_closing_wakes_a_receiver_and_tells_the_reason() -> None:
    with pair() as (near, far):
        closing = threading.Timer(0.1, near.close, ("enough",))
        closing.start()
        with pytest.raises(LinkError, match="it closed the connection: enough"):
            far.receive()
        closing.join()
        with pytest.raises(LinkError, match="was closed here"):
            near.receive()


def test_a_vanished_process_is_noticed_at_once() -> None:
    with pair() as (near, far):
        far._sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(LinkError, match="without a goodbye"):
            near.receive()


# ---- strangers -----------------------------------------------------------------------------------


def test_other_keys_are_refused() -> None:
    with listening() as (listener, why):
        with pytest.raises(LinkError, match=f"{listener.address} does not know this key"):
            connect(listener.address, key=make_key())
        eventually(lambda: why)
        with connect(listener.address, key=KEY), listener.accept(5):
            pass


def test_a_client_that_cannot_prove_the_key_is_refused() -> None:
    with listening() as (listener, why):
        stranger = socket.create_connection(listener.address)
        _half, hello = handshake_module._hello()
        stranger.sendall(hello + bytes(32))
        assert "does not know the key" in eventually(lambda: why)[0]
        stranger.settimeout(5)
        rest = stranger.recv(1000)
        assert len(rest) <= 76 + 32  # its hello and proof, nothing else
        stranger.close()


def test_a_proof_cannot_be_sent_back() -> None:
    """The server's proof is of its role, so that it proves nothing as the client's."""
    with listening() as (listener, why):
        liar = socket.create_connection(listener.address)
        _half, hello = handshake_module._hello()
        liar.sendall(hello)
        answer = b""
        while len(answer) < 76 + 32:
            answer += liar.recv(200)
        liar.sendall(answer[76:])
        assert "does not know the key" in eventually(lambda: why)[0]
        liar.close()


def test_what_is_no_weft_is_told_nothing() -> None:
    with listening() as (listener, why):
        browser = socket.create_connection(listener.address)
        browser.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100))
        assert "is not weft" in eventually(lambda: why)[0]
        browser.settimeout(5)
        try:
            assert browser.recv(10) == b""
        except ConnectionResetError:
            pass
        browser.close()


def test_slow_handshakes_end_and_hold_up_nobody() -> None:
    with listening(timeout=1.0) as (listener, why):
        slow = [socket.create_connection(listener.address) for _ in range(HALF_OPEN + 8)]
        for sock in slow:
            sock.sendall(b"w")
        with connect(listener.address, key=KEY), listener.accept(5):
            pass
        eventually(lambda: len(why) >= len(slow))
        for sock in slow:
            sock.close()
        assert any("within 1 s" in text for text in why)


def test_a_listener_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = silent.getsockname()
        with pytest.raises(LinkError, match=f"127.0.0.1:{at[1]} did not finish.* within 0.3 s"):
            connect(at, key=KEY, timeout=0.3)
    with pytest.raises(LinkError, match="cannot connect to 127"):
        connect(at, key=KEY)


def test_other_versions_are_refused_with_both_values() -> None:
    with listening(facts={"ops": "1234"}) as (listener, why):
        said = f"{listener.address} has ops 1234, this side has ops 5678"
        with pytest.raises(LinkError, match=said):
            connect(listener.address, key=KEY, facts={"ops": "5678"})
        assert "has ops 5678, this side has ops 1234" in eventually(lambda: why)[0]
        with connect(listener.address, key=KEY, facts={"ops": "1234"}) as link:
            assert link.facts == {"ops": "1234", "weft": __version__}


def test_facts_that_one_side_does_not_state_are_refused_by_both() -> None:
    for theirs, mine in (("1234", "none"), ("none", "1234")):
        facts = [{} if ops == "none" else {"ops": ops} for ops in (theirs, mine)]
        with listening(facts=facts[0]) as (listener, why):
            with pytest.raises(LinkError, match=f"has ops {theirs}, this side has ops {mine}"):
                connect(listener.address, key=KEY, facts=facts[1])
            assert f"has ops {mine}, this side has ops {theirs}" in eventually(lambda: why)[0]


@pytest.mark.parametrize("version", [99, 0])
def test_other_protocols_are_refused_with_both_values(version: int) -> None:
    with listening() as (listener, why):
        sock = socket.create_connection(listener.address)
        hello = handshake_module._hello()[1]
        sock.sendall(hello[:8] + struct.pack("<H", version) + hello[10:])
        said = eventually(lambda: why)[0]
        assert f"version {version} of weft's link protocol, this side version 1" in said
        sock.close()


def test_keys_of_other_parts_are_other_keys() -> None:
    keys = [derive(KEY, b"ab", b"c"), derive(KEY, b"a", b"bc"), derive(KEY, b"abc"), derive(KEY)]
    assert len(set(keys)) == len(keys)
    assert derive(KEY, b"ab", b"c") == keys[0] != derive(bytes(32), b"ab", b"c")


def test_changed_repeated_and_cut_bytes_end_the_link() -> None:
    def flip(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    for change in (flip, lambda data: data + data, lambda data: data[1:]):
        with Listener(key=KEY) as listener:
            proxy = Proxy(str(listener.address))
            with connect(parse_address(proxy.address, "x"), key=KEY) as near:
                with listener.accept(5) as far:
                    far.send({"n": 1})
                    assert near.receive(5)[0] == {"n": 1}
                    proxy.change = change
                    far.send({"n": 2}, b"secret")
                    with pytest.raises(LinkError, match="fails its check"):
                        for _ in range(3):
                            near.receive(5)
            proxy.close()


def test_nothing_is_sent_in_the_open() -> None:
    seen = bytearray()

    def look(data: bytes) -> bytes:
        seen.extend(data)
        return data

    with Listener(key=KEY) as listener:
        proxy = Proxy(str(listener.address))
        proxy.change = look
        with connect(parse_address(proxy.address, "x"), key=KEY) as near, listener.accept(5) as far:
            far.send({"word": "plaintext-header"}, b"plaintext-array" * 100)
            near.receive(5)
        proxy.close()
    assert len(seen) > 1500
    assert b"plaintext" not in seen
    assert KEY not in seen


# ---- addresses and keys --------------------------------------------------------------------------


def test_other_machines_need_a_key() -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(LinkError, match="needs a key"):
            Listener(host)
    with pytest.raises(LinkError, match="needs the key"):
        connect(("192.0.2.1", 1))
    with Listener() as listener, connect(listener.address), listener.accept(5):
        pass
    with Listener() as listener, pytest.raises(LinkError, match="has no key, and this side has"):
        connect(listener.address, key=KEY)
    with listening() as (listener, why):
        with pytest.raises(LinkError, match="has a key, and this side was given none"):
            connect(listener.address)
        assert "this worker has a key, and the other side" in eventually(lambda: why)[0]


def test_a_port_in_use_is_named() -> None:
    with Listener(key=KEY) as one:
        with pytest.raises(LinkError, match=f"cannot listen on {one.address}"):
            Listener(port=one.address.port, key=KEY)


def test_closing_a_listener_wakes_accept() -> None:
    listener = Listener(key=KEY)
    threading.Timer(0.1, listener.close).start()
    with pytest.raises(LinkError, match="is closed"):
        listener.accept()
    with pytest.raises(LinkError, match="is closed"):
        listener.accept()


def test_addresses() -> None:
    assert parse_address("a.example:80", "x") == ("a.example", 80)
    assert parse_address("[::1]:80", "x") == ("::1", 80)
    assert parse_address("10.0.0.2", "x", port=7) == ("10.0.0.2", 7)
    assert parse_address("::1", "x", port=7) == ("::1", 7)
    assert str(Address("::1", 80)) == "[::1]:80"
    for bad in ("", "host", "host:", "host:x", ":80", "host:70000", "host:-1", "host:８０"):
        with pytest.raises(ArgumentError, match="--machines"):
            parse_address(bad, "--machines")
    assert is_loopback("127.0.0.2")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("")


def test_a_host_with_one_address_elsewhere_is_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", (host, 0)) for host in ("127.0.0.1", "10.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert not is_loopback("both")
    del found[1]
    assert is_loopback("one")


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    key = write_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_key(file) == key
    with pytest.raises(LinkError, match="never overwritten"):
        write_key(file)
    for mode in (0o640, 0o604, 0o620, 0o644):
        file.chmod(mode)
        with pytest.raises(LinkError, match="chmod 600"):
            read_key(file)
    with pytest.raises(MissingFileError, match="--make-key"):
        read_key(tmp_path / "none")
    for text in ("", "12", "zz" * 32, key.hex() + "00"):
        with pytest.raises(LinkError, match="64 hexadecimal digits") as caught:
            key_from_text(text, "FILE")
        assert not text or text not in str(caught.value)
    assert os.listdir(tmp_path) == ["key"]


# ---- speed ---------------------------------------------------------------------------------------


def test_speed_is_measured_and_slowness_named_once() -> None:
    with pair() as (near, far):
        for link in (near, far):
            threading.Thread(target=_receive_quietly, args=(link,), daemon=True).start()
        found = eventually(lambda: measure(near))
        assert 0 < found.rtt < 3
        assert found.rate > 1e5
    watch = SpeedWatch("10.0.0.2", Speed(0.0003, 118e6))
    assert watch.look(Speed(0.0004, 100e6)) is None
    assert watch.look(Speed(0.052, 3.1e6)) is None  # once may be chance
    assert watch.look(Speed(0.0004, 100e6)) is None
    assert watch.look(Speed(0.052, 3.1e6)) is None  # and so may be twice, with a good one between
    text = watch.look(Speed(0.052, 3.1e6))
    assert text is not None
    for part in ("10.0.0.2", "52.00 ms", "3.1 MB/s", "0.30 ms", "118.0 MB/s"):
        assert part in text
    assert watch.look(Speed(0.052, 3.1e6)) is None
    thin = SpeedWatch("a", Speed(0.0003, 118e6))
    assert thin.look(Speed(0.0003, 10e6)) is None
    assert thin.look(Speed(0.0003, 10e6)) is not None

"""The probe that asks servers single questions."""

import contextlib
import socket
import threading
import time

import pytest

from servetune.probe import ConnectError, Server, TooLarge, ask


@pytest.fixture
def answering():
    """Serve one connection with given bytes, in pieces with pauses between; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    got = []

    def serve(*pieces, pause_s=0.0):
        def answer():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                request = connection.recv(65536)
                while b"Content-Length: 2" in request and not request.endswith(b"{}"):
                    request += connection.recv(65536)
                got.append(request)
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(pause_s)

        threading.Thread(target=answer, daemon=True).start()
        return Server("127.0.0.1", listener.getsockname()[1]), got

    with listener:
        yield serve


def test_the_reply_has_status_and_whole_body(answering):
    server, got = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nno", b"pe")
    reply = ask(server, "/x", timeout_s=5, method="POST", headers={"A": "b"}, body=b"{}")
    assert (reply.status, reply.text) == (404, "nope")
    assert got[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert got[0].endswith(b"\r\n\r\n{}")


def test_nobody_at_the_port_is_told_from_a_lost_connection(answering):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError, match="refused"):
        ask(Server("127.0.0.1", port), "/", timeout_s=5)
    server, _ = answering()
    with pytest.raises(OSError, match=r"\w") as caught:
        ask(server, "/", timeout_s=5)
    assert not isinstance(caught.value, ConnectError)


def test_what_is_not_http_is_an_error_of_the_connection(answering):
    server, _ = answering(b"hello\r\n\r\n")
    with pytest.raises(OSError, match="hello"):
        ask(server, "/", timeout_s=5)


def test_a_body_that_trickles_ends_at_the_time_limit(answering):
    server, _ = answering(
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", *[b"x"] * 99, pause_s=0.02
    )
    with pytest.raises(TimeoutError):
        ask(server, "/", timeout_s=0.1)


@pytest.mark.parametrize(
    "beginning",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ],
)
def test_an_answer_without_end_is_cut(answering, beginning):
    server, _ = answering(beginning, *[b"x" * 1_000_000] * 40)
    with pytest.raises(TooLarge, match="more than 16 MiB"):
        ask(server, "/", timeout_s=20)


@pytest.mark.parametrize(
    ("beginning", "line"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["interim answers", "trailers"],
)
def test_heads_and_trailers_without_end_are_cut(answering, beginning, line):
    server, _ = answering(beginning, *[line * (1_000_000 // len(line))] * 20)
    with pytest.raises(TooLarge):
        ask(server, "/", timeout_s=20)


@pytest.mark.parametrize("text", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n"])
def test_a_head_that_trickles_ends_at_the_time_limit(answering, text):
    server, _ = answering(text, *[b"x"] * 99, pause_s=0.02)
    with pytest.raises(TimeoutError):
        ask(server, "/", timeout_s=0.1)


def test_a_body_that_breaks_off_is_an_error(answering):
    server, _ = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", b"x" * 98)
    with pytest.raises(OSError, match="1 bytes early"):
        ask(server, "/", timeout_s=5)


def test_an_error_quotes_little_of_what_came(answering):
    server, _ = answering(b"x" * 60_000 + b"\r\n\r\n")
    with pytest.raises(OSError, match="xxx") as caught:
        ask(server, "/", timeout_s=5)
    assert len(str(caught.value)) <= 300

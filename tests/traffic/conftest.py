"""A server that does what a script says, and a client that asks it in this very thread."""

import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from servetune.traffic.connection import Address, Call, monotonic
from servetune.traffic.reactor import Reactor

sys.path.insert(0, str(Path(__file__).parents[1] / "loadgen"))  # load_options

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HANG_S = 20.0


class Kept:
    """An answer that keeps what it is handed."""

    def __init__(self):
        self.status = None
        self.kind = None
        self.pieces = []
        self.times_s = []

    def head(self, status, content_type):
        self.status, self.kind = status, content_type

    def take(self, pieces, times_s):
        assert len(pieces) == len(times_s)
        self.pieces += pieces
        self.times_s += times_s

    @property
    def content(self):
        return b"".join(self.pieces)


class Scripted:
    """Answers connection k as script k says; the last script is for all that come after.

    A script is a list with one entry per request. An entry is a list of steps: bytes to
    write, a number of seconds to wait, `None` to hang up, `"reset"` to hang up with a reset,
    `"half"` to close the sending half, or a function that is given the socket. A request is
    taken for read with the first bytes of it, unless `reads` is false: then nothing is read.
    """

    def __init__(self, *scripts, tls=None, host="127.0.0.1", reads=True):
        self.scripts = scripts
        self.came = []
        self.asked = []
        self.reads = reads
        self._tls = tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                script = self.scripts[min(len(self.came), len(self.scripts) - 1)]
                self.came.append(sock)
                threading.Thread(target=self._serve, args=(sock, script), daemon=True).start()

    def _serve(self, sock, script):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                plain, sock = sock, self._tls.wrap_socket(sock, server_side=True)
                self.came[self.came.index(plain)] = sock
            for steps in script:
                if self.reads:
                    asked = sock.recv(65536)
                    if not asked:
                        break
                    self.asked.append(asked)
                for step in steps:
                    if not self._do(sock, step):
                        return

    def _do(self, sock, step):
        if step is None or step == "reset":
            if step is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            return False
        if step == "half":
            sock.shutdown(socket.SHUT_WR)
        elif isinstance(step, bytes):
            sock.sendall(step)
        elif callable(step):
            step(sock)
        else:
            time.sleep(step)
        return True

    def refuse(self):
        """Listen no longer."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self):
        self.refuse()
        for sock in self.came:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class Client:
    """A reactor that is run until what was asked is done."""

    def __init__(self, *ports, scheme="http", host="127.0.0.1", cafile=None, may_sleep=False):
        addresses = [Address(scheme=scheme, host=host, port=port, cafile=cafile) for port in ports]
        self.reactor = Reactor(addresses, may_sleep=may_sleep)
        self._asked = 0

    def call(
        self, payload=REQUEST, *, timeout_s=10.0, on_done=lambda _: None, target=0, answer=None
    ):
        """A call that has just left."""

        def settled(call):
            call.take_rest()
            on_done(call)

        answer = answer or Kept()
        call = Call(self._asked, payload, answer, settled, target=target, limit_s=timeout_s)
        self._asked += 1
        self.reactor.exchange(call)
        return call

    def run_until(self, reached):
        """Turn until it is so; much more time than anything takes is a failure."""
        deadline_s = monotonic() + HANG_S

        def look():
            if reached():
                self.reactor.stop()
            else:
                assert monotonic() < deadline_s, "it hangs"
                self.reactor.at(monotonic() + 0.001, look)

        look()
        self.reactor.run()

    def turn(self, seconds):
        until_s = monotonic() + seconds
        self.run_until(lambda: monotonic() >= until_s)

    def ask(self, payload=REQUEST, **options):
        """The call, done, and what it was answered."""
        call = self.call(payload, **options)
        self.run_until(lambda: call.done)
        call.take_rest()
        return call, call.answer

    def ask_many(self, count, payload=REQUEST, **options):
        calls = [self.call(payload, **options) for _ in range(count)]
        self.run_until(lambda: all(call.done for call in calls))
        for call in calls:
            call.take_rest()
        return calls


@pytest.fixture
def scripted():
    """Start scripted servers; they are gone after the test."""
    servers = []

    def start(*scripts, **options):
        servers.append(Scripted(*scripts, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def client():
    """Make clients; their connections are closed after the test."""
    clients = []

    def make(*ports, **options):
        clients.append(Client(*ports, **options))
        return clients[-1]

    yield make
    for one in clients:
        one.reactor.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, and a context that serves with it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, path = folder / "key.pem", folder / "certificate.pem"
    options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    options += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [openssl, *options, "-keyout", key, "-out", path], capture_output=True, check=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path, key)
    return str(path), context


@pytest.fixture
def whole():
    """A whole answer."""

    def answer(text=b"hello", *headers):
        lines = [b"HTTP/1.1 200 OK", b"Content-Type: text/plain; charset=utf-8", *headers]
        lines.append(b"Content-Length: %d" % len(text))
        return b"\r\n".join(lines) + b"\r\n\r\n" + text

    return answer

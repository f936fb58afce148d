"""A simulated server in the test's own process, on a real socket."""

import asyncio
from contextlib import asynccontextmanager

import httptools
import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.plan import Plan
from servetune.simserver import Faults, SimulatedServer, service_of

MODEL = "Qwen/Qwen3-4B"


class Died(Exception):
    """The server would have ended its process."""


class Reply:
    """A whole answer, read off the wire."""

    def __init__(self):
        self.status, self.headers, self.body, self.is_whole = 0, {}, b"", False

    def on_header(self, name, value):
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        self.is_whole = True

    @property
    def json(self):
        return msgspec.json.decode(self.body)

    @property
    def events(self):
        """Data of a stream, `[DONE]` as text."""
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == ""
        assert all(line.startswith("data: ") for line in lines)
        said = [line.removeprefix("data: ") for line in lines]
        return [one if one == "[DONE]" else msgspec.json.decode(one) for one in said]


class Client:
    """One connection to a server of this process."""

    def __init__(self, port):
        self._port = port
        self.reader = self.writer = None

    async def send(self, method, path, body=None, headers=()):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = (
            b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        )
        lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(data)}", *headers]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def send_raw(self, *parts):
        """Bytes as they are, until the server listens no more."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        for part in parts:
            self.writer.write(part)
            try:
                await self.writer.drain()
            except ConnectionError:
                return

    async def rest(self):
        """All that comes until the server closes the connection."""
        came = b""
        try:
            while data := await asyncio.wait_for(self.reader.read(1 << 16), 20):
                came += data
        except ConnectionResetError:
            pass
        return came

    async def read(self):
        """The next answer; what came of it where the connection was lost."""
        reply = Reply()
        parser = httptools.HttpResponseParser(reply)
        while not reply.is_whole:
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 16), 20)
            except ConnectionResetError:
                data = b""
            if not data:
                break
            parser.feed_data(data)
        reply.status = parser.get_status_code()
        return reply

    async def ask(self, method, path, body=None, headers=()):
        await self.send(method, path, body, headers)
        return await self.read()

    def close(self):
        if self.writer is not None:
            self.writer.close()


@pytest.fixture
def serving():
    """A server of a plan on an L4, with a way to ask it."""

    @asynccontextmanager
    async def start(
        *,
        speed=200.0,
        faults=None,
        fault_seed=0,
        api_key=None,
        log=None,
        devices=1,
        limits=None,
        **settings,
    ):
        about = {"names": ("tiny",), **settings.pop("about", {})}
        plan = Plan(model=MODEL, **settings)
        shape = load_shape(MODEL, catalogue_first=True)
        service = service_of(plan, shape, node(gpu="L4", count=devices), **about)

        def die(status):
            deaths.append(status)
            raise Died

        deaths, lines = [], [] if log is None else log
        server = SimulatedServer(
            service,
            speed=speed,
            faults=faults or Faults(),
            fault_seed=fault_seed,
            api_key=api_key,
            limits=limits,
            say=lines.append,
            die=die,
        )
        await server.start("127.0.0.1", 0)
        clients = []

        def client():
            clients.append(Client(server.port))
            return clients[-1]

        try:
            yield client
        finally:
            for one in clients:
                one.close()
            await server.close()

    return start

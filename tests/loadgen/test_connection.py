import asyncio
import shutil
import ssl
import subprocess
import time
from contextlib import asynccontextmanager

import pytest

from servetune.errors import InputError
from servetune.loadgen.origin import Origin, Pool

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Kept:
    """A reader that keeps what it is handed."""

    def __init__(self):
        self.status = None
        self.kind = None
        self.parts = []

    def head(self, status, content_type):
        self.status, self.kind = status, content_type

    def body(self, data, at_s):
        self.parts.append((data, at_s))

    @property
    def content(self):
        return b"".join(data for data, _ in self.parts)


@asynccontextmanager
async def scripted(*scripts, tls=None):
    """A server that answers connection k as script k says, and how many connections came.

    A script is a list with one entry per request: bytes to write, and `None` to hang up.
    """
    came = []

    async def serve(reader, writer):
        script = scripts[min(len(came), len(scripts) - 1)]
        came.append(writer)
        for steps in script:
            if not await reader.read(4096):
                break
            for step in steps:
                if step is None:
                    writer.close()
                    return
                writer.write(step)
                await asyncio.sleep(0.002)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield port, came
    finally:
        for writer in came:
            writer.close()
        server.close()


def pool_for(port, **options):
    return Pool(Origin("http", "127.0.0.1", port), time.monotonic, **options)


def whole(text=b"hello"):
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n" + (
        b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
    )


async def ask(pool, timeout_s=5.0):
    kept = Kept()
    return await pool.exchange(REQUEST, kept, timeout_s=timeout_s), kept


async def test_a_connection_is_kept_and_used_again():
    async with scripted([[whole(b"one")], [whole(b"two")]]) as (port, came):
        pool = pool_for(port)
        first, kept = await ask(pool)
        second, again = await ask(pool)
        pool.close()
    assert (kept.content, again.content) == (b"one", b"two")
    assert (kept.status, kept.kind) == (200, "text/plain")
    assert (first.reused, second.reused) == (False, True)
    assert (pool.opened_count, pool.reused_count, len(came)) == (1, 1, 1)


async def test_times_are_of_the_bytes_arrival_and_in_order():
    parts = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
    parts += [b"1\r\n%d\r\n" % i for i in range(5)] + [b"0\r\n\r\n"]
    async with scripted([parts]) as (port, _):
        before_s = time.monotonic()
        exchange, kept = await ask(pool_for(port))
        after_s = time.monotonic()
    assert kept.content == b"01234"
    times_s = [at_s for _, at_s in kept.parts]
    ordered = [before_s, exchange.sent_s, *times_s, exchange.end_s, after_s]
    assert ordered == sorted(ordered)


async def test_a_request_that_meets_a_connection_just_closed_goes_once_more():
    async with scripted([[whole(b"one")], [None]], [[whole(b"two")]]) as (port, came):
        pool = pool_for(port)
        await ask(pool)
        exchange, kept = await ask(pool)
        pool.close()
    assert kept.content == b"two"
    assert exchange.retried
    assert exchange.outcome == "ok"
    assert (pool.retried_count, len(came)) == (1, 2)


async def test_it_goes_once_more_and_not_twice():
    async with scripted([[whole()], [None]], [[None]]) as (port, came):
        pool = pool_for(port)
        await ask(pool)
        exchange, _ = await ask(pool)
        pool.close()
    assert (exchange.outcome, exchange.status) == ("disconnected", None)
    assert (pool.retried_count, len(came)) == (1, 2)


async def test_a_server_that_dies_on_a_kept_connection_has_not_refused_the_request():
    asked = asyncio.Event()

    async def serve(reader, writer):
        await reader.read(4096)
        writer.write(whole())
        await reader.read(4096)
        server.close()
        asked.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = pool_for(server.sockets[0].getsockname()[1])
    await ask(pool)
    exchange, _ = await ask(pool)
    assert asked.is_set()
    assert (exchange.outcome, exchange.retried) == ("disconnected", True)
    assert "connection lost, then cannot connect" in exchange.detail


async def test_a_fresh_connection_that_is_lost_is_no_reason_to_try_again():
    async with scripted([[None]]) as (port, came):
        pool = pool_for(port)
        exchange, _ = await ask(pool)
    assert exchange.outcome == "disconnected"
    assert "before any answer" in exchange.detail
    assert (pool.retried_count, len(came)) == (0, 1)


async def test_a_kept_connection_lost_inside_an_answer_is_no_reason_either():
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"
    async with scripted([[whole()], [half, None]]) as (port, came):
        pool = pool_for(port)
        await ask(pool)
        exchange, kept = await ask(pool)
    assert (exchange.outcome, exchange.status) == ("disconnected", 200)
    assert "while answering" in exchange.detail
    assert kept.content == b"hal"
    assert (pool.retried_count, len(came)) == (0, 1)


async def test_an_idle_connection_that_the_server_closed_is_not_used():
    async with scripted([[whole(), None]], [[whole()]]) as (port, came):
        pool = pool_for(port)
        await ask(pool)
        await asyncio.sleep(0.02)
        exchange, _ = await ask(pool)
        pool.close()
    assert exchange.outcome == "ok"
    assert (pool.reused_count, pool.retried_count, len(came)) == (0, 0, 2)


async def test_connection_close_is_obeyed():
    closing = whole().replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    async with scripted([[closing]], [[whole()]]) as (port, came):
        pool = pool_for(port)
        await ask(pool)
        await ask(pool)
        pool.close()
    assert (pool.reused_count, len(came)) == (0, 2)


async def test_an_answer_without_a_length_ends_with_its_connection():
    async with scripted([[b"HTTP/1.1 200 OK\r\n\r\n", b"all of it", None]]) as (port, _):
        exchange, kept = await ask(pool_for(port))
    assert (exchange.outcome, kept.content) == ("ok", b"all of it")


async def test_an_interim_answer_is_not_the_answer():
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with scripted([[interim, whole(b"real")]]) as (port, _):
        pool = pool_for(port)
        exchange, kept = await ask(pool)
        pool.close()
    assert (exchange.status, kept.content) == (200, b"real")


async def test_what_is_not_http_is_malformed():
    async with scripted([[b"220 mail.example ESMTP\r\n"]]) as (port, _):
        exchange, _ = await ask(pool_for(port))
    assert exchange.outcome == "malformed"
    assert exchange.detail.startswith("not HTTP")


async def test_a_second_answer_to_one_question_costs_the_connection():
    async with scripted([[whole(b"one") + whole(b"extra")]], [[whole(b"two")]]) as (port, came):
        pool = pool_for(port)
        await ask(pool)
        _, kept = await ask(pool)
        pool.close()
    assert kept.content == b"two"
    assert len(came) == 2


async def test_nobody_listening_is_refused():
    async with scripted([[whole()]]) as (port, _):
        pass
    exchange, _ = await ask(pool_for(port))
    assert (exchange.outcome, exchange.status) == ("refused", None)
    assert exchange.detail == f"cannot connect to http://127.0.0.1:{port}: Connection refused"


async def test_a_name_that_does_not_exist_is_refused():
    pool = Pool(Origin("http", "no-such-host.invalid", 80), time.monotonic)
    exchange, _ = await ask(pool)
    assert exchange.outcome == "refused"
    assert "no-such-host.invalid" in exchange.detail


async def test_silence_times_out_and_its_connection_is_given_up():
    async with scripted([[b"HTTP/1.1 200 OK\r\n"]], [[whole()]]) as (port, came):
        pool = pool_for(port)
        exchange, _ = await ask(pool, timeout_s=0.05)
        assert exchange.outcome == "timeout"
        assert (await ask(pool))[0].outcome == "ok"
        pool.close()
        assert len(came) == 2


async def test_abandoned_requests_end_at_once_with_the_reason_given():
    async with scripted([[]]) as (port, _):
        pool = pool_for(port)
        asked = [asyncio.create_task(ask(pool)) for _ in range(3)]
        await asyncio.sleep(0.02)
        pool.abandon("cancelled", "enough")
        exchanges = [exchange for exchange, _ in await asyncio.gather(*asked)]
    assert {(one.outcome, one.detail) for one in exchanges} == {("cancelled", "enough")}


async def test_a_cancelled_task_takes_its_connection_along():
    async with scripted([[]]) as (port, _):
        pool = pool_for(port)
        asked = asyncio.create_task(ask(pool))
        await asyncio.sleep(0.02)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert pool._idle == []
        assert not pool._calls


async def test_a_mistake_in_a_reader_is_raised_and_not_blamed_on_the_server():
    class Broken(Kept):
        def body(self, data, at_s):
            raise RuntimeError("a bug")

    async with scripted([[whole()]]) as (port, _):
        with pytest.raises(RuntimeError, match="a bug"):
            await pool_for(port).exchange(REQUEST, Broken(), timeout_s=5.0)


async def test_requests_in_flight_never_share_a_connection_nor_open_more_than_needed():
    async with scripted([[whole()]] * 3) as (port, came):
        pool = pool_for(port)
        for _ in range(3):
            asked = await asyncio.gather(*(ask(pool) for _ in range(4)))
            assert [kept.content for _, kept in asked] == [b"hello"] * 4
        pool.close()
    assert pool.opened_count == len(came) == 4
    assert pool.reused_count == 8


async def test_tls_is_spoken_when_the_url_says_https(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    options += [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    quiet = subprocess.DEVNULL
    made = await asyncio.create_subprocess_exec(openssl, *options, stdout=quiet, stderr=quiet)
    assert await made.wait() == 0
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=certificate)
    async with scripted([[whole(b"secret")]], tls=serving) as (port, _):
        origin = Origin("https", "127.0.0.1", port)
        pool = Pool(origin, time.monotonic, tls=trusting)
        exchange, kept = await ask(pool)
        pool.close()
        assert (exchange.outcome, kept.content) == ("ok", b"secret")
        stranger, _ = await ask(Pool(origin, time.monotonic))
        assert stranger.outcome == "refused"
        assert "certificate" in stranger.detail.lower()


class TestOrigin:
    @pytest.mark.parametrize(
        ("url", "shown", "host_header", "prefix"),
        [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "127.0.0.1:8000", ""),
            ("https://a.example/t/v1", "https://a.example/t", "a.example", "/t"),
            ("https://a.example:80", "https://a.example:80", "a.example:80", ""),
            ("http://[::1]:9/", "http://[::1]:9", "[::1]:9", ""),
        ],
    )
    def test_urls_are_read_with_and_without_v1(self, url, shown, host_header, prefix):
        origin = Origin.parse(url)
        assert (str(origin), origin.host_header, origin.prefix) == (shown, host_header, prefix)

    @pytest.mark.parametrize(
        "url", ["ftp://x", "http://", "http://x:port", "http://x:99999", "", "http://u:p@x"]
    )
    def test_what_is_no_address_is_refused(self, url):
        with pytest.raises(InputError):
            Origin.parse(url)

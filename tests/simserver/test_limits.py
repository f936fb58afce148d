"""Clients that send or hold more than a server takes, and other protocols than HTTP/1.1."""

import asyncio
import contextlib
import json
import random
import re

import msgspec
import pytest

from servetune.simserver.connection import Connection
from servetune.simserver.limits import Limits, Occupancy, limits_of_context

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
SMALL = Limits(
    head_bytes=1000, body_bytes=10_000, framing_bytes=50_000, request_s=0.3, keep_alive_s=0.2
)
STREAM = {"model": "tiny", "prompt": [5] * 10, "max_tokens": 50, "stream": True}


def post(body):
    return HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def statuses(came):
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) ", came)]


async def refusal(client):
    came = await client.rest()
    return statuses(came), json.loads(came.partition(b"\r\n\r\n")[2])["detail"]


async def sent_until_held_up(client, block):
    """Bytes that a client got rid of before the server stopped reading."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 100_000_000:
            await asyncio.wait_for(client.send_raw(block), 0.4)
            sent += len(block)
    return sent


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        ([HEAD, *[b"X-%d: y\r\n" % i for i in range(500)]], 431, "head is larger than 0 KiB"),
        ([HEAD + b"X: ", *[b"y" * 100] * 100], 431, "head is larger"),
        ([b"GET /", *[b"a" * 100] * 100], 431, "head is larger"),
        ([HEAD + b"X: " + b"y" * 2000 + b"\r\n\r\n"], 431, "head is larger"),
        ([HEAD + b"Content-Length: 10001\r\n\r\n"], 413, "body is larger"),
        ([HEAD + b"Content-Length: 9999999999999999999\r\n\r\n"], 413, "body is larger"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"64\r\n" + b"a" * 100 + b"\r\n"] * 200],
         413, "body is larger"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1;" + b"e" * 500 + b"\r\na\r\n"] * 200],
         413, "framing and trailers are larger"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *[b"X: yyyyyyyyyyyyyyyy\r\n"] * 500],
         431, "head is larger"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", *[b"y" * 1000] * 100],
         413, "framing and trailers are larger"),
        ([b"\x16\x03\x01\x02\x00\x01"], 400, "this is not HTTP"),
        ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"], 505, "HTTP/2 is not served"),
        ([b"PRI * HTTP/2.0\r\n", b"\r\nSM\r\n\r\n"], 505, "HTTP/2 is not served"),
    ],
)  # fmt: skip
async def test_what_is_beyond_a_limit_is_refused_in_words(serving, sent, status, words):
    patient = msgspec.structs.replace(SMALL, request_s=30)  # of a busy machine, too
    async with serving(limits=patient) as client:
        one = client()
        await one.send_raw(*sent)
        (got,), detail = await refusal(one)
        assert (await client().ask("GET", "/health")).status == 200
    assert (got, words in detail) == (status, True), detail


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (HEAD + b"X: " + b"y" * 10_000, 431, "head is larger"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + 200 * (b"1;" + b"e" * 500 + b"\r\na\r\n"),
         413, "framing and trailers are larger"),
    ],
)  # fmt: skip
async def test_what_is_beyond_a_limit_is_refused_where_it_comes_at_once(
    serving, sent, status, words
):
    """A busy machine reads all of it together."""
    async with serving(limits=msgspec.structs.replace(SMALL, request_s=30)) as client:
        one = client()
        await one.send_raw(sent)
        (got,), detail = await refusal(one)
    assert (got, words in detail) == (status, True), detail


async def test_a_head_within_its_limit_may_come_in_pieces(serving):
    """Each byte of it counts once, however it is cut."""
    async with serving(limits=SMALL) as client:
        one = client()
        for part in (
            HEAD,
            *[b"X-%d: %b\r\n" % (i, b"y" * 90) for i in range(8)],
            b"Content-Length: 2\r\n",
        ):
            await one.send_raw(part)
            await asyncio.sleep(0.01)
        await one.send_raw(b"\r\n{}")
        reply = await one.read()
    assert reply.status == 400, reply.body


@pytest.mark.parametrize(
    "sent",
    [b"", b"G", HEAD, HEAD + b"X: y", HEAD + b"Content-Length: 100\r\n\r\nabc", b"PRI * HT"],
    ids=["nothing", "a letter", "half a head", "half a header", "half a body", "half of HTTP/2"],
)
async def test_a_request_that_never_ends_is_given_up(serving, sent):
    async with serving(limits=SMALL) as client:
        one = client()
        await one.send_raw(sent)
        came = await one.rest()
        assert (await client().ask("GET", "/health")).status == 200
    assert statuses(came) == ([408] if sent else [])


async def test_a_request_that_trickles_is_given_up_at_the_same_time(serving):
    async with serving(limits=SMALL) as client:
        one = client()
        for byte in HEAD + b"X: " + b"y" * 500:
            await one.send_raw(bytes([byte]))
            await asyncio.sleep(0.01)
            if one.reader._buffer:
                break
        for byte in b"more":  # what crosses the refusal on its way costs nobody the refusal
            await one.send_raw(bytes([byte]))
            await asyncio.sleep(0.01)
        assert statuses(await one.rest()) == [408]


async def test_an_idle_connection_is_closed_and_a_busy_one_kept(serving):
    async with serving(limits=SMALL, speed=1.0) as client:
        idle, busy = client(), client()
        assert (await idle.ask("GET", "/health")).status == 200
        reply = await busy.ask("POST", "/v1/completions", STREAM)  # longer than every limit
        assert await idle.rest() == b""
    assert reply.events[-1] == "[DONE]"


async def test_connections_beyond_their_number_are_refused(serving):
    async with serving(limits=Limits(connections=3)) as client:
        crowd = [client() for _ in range(6)]
        for one in crowd:
            await one.send_raw(b"")
        refused = [await refusal(one) for one in crowd[3:]]
        crowd[0].close()
        await asyncio.sleep(0.05)
        assert (await client().ask("GET", "/health")).status == 200
    assert refused == [([503], "the server has as many connections as it takes")] * 3


async def test_requests_of_all_clients_together_have_a_limit(serving):
    async with serving(limits=Limits(held_bytes=500_000)) as client:
        many = [client() for _ in range(20)]
        for one in many:
            await one.send_raw(HEAD + b"Content-Length: 100000\r\n\r\n")
            await asyncio.sleep(0.001)
            await one.send_raw(b"x" * 50_000)
        await asyncio.sleep(0.05)
        refused = [one for one in many if one.reader._buffer]
        answers = [await refusal(one) for one in refused]
        for one in many:
            one.close()
        await asyncio.sleep(0.05)
        assert (await client().ask("POST", "/v1/completions", STREAM)).status == 200
    assert 8 <= len(refused) <= 12
    assert answers == [([503], "the server holds as many requests as it takes")] * len(refused)


async def test_what_was_held_is_given_back(serving):
    class Site:
        def opened(self, connection):
            return True

        def closed(self, connection):
            pass

        def handle(self, connection, http_request):
            held.append(occupancy.held_bytes)
            connection.reply(200, b"")

    held, occupancy = [], Occupancy(Limits())
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(Site(), occupancy), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    for sent in (post(b"x" * 5000) * 3, HEAD, HEAD + b"Content-Length: 9\r\n\r\n1", b"?", HEAD * 9):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(sent), 1000):
            writer.write(sent[at : at + 1000])
            await asyncio.sleep(0.002)
        writer.close()
        await asyncio.sleep(0.01)
    listener.close()
    assert len(held) == 3
    assert (min(held) >= 5000, occupancy.held_bytes) == (True, 0)


async def test_an_upgrade_to_http_2_is_answered_in_http_1_and_so_is_what_follows(serving):
    body = json.dumps({**STREAM, "stream": False}).encode()
    upgrade = HEAD + H2C + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    async with serving() as client:
        one = client()
        connect = b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"
        await one.send_raw(GET[:-2] + H2C + b"\r\n" + upgrade + connect + upgrade, GET)
        await one.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        came = await one.rest()
    assert statuses(came) == [200, 200, 404, 200, 200, 505]
    assert came.count(b'"finish_reason":"length"') == 2


async def test_a_refusal_waits_for_the_answers_before_it(serving):
    async with serving() as client:
        one = client()
        await one.send_raw(post(json.dumps(STREAM).encode()) + GET + b"nonsense\r\n\r\n")
        came = await one.rest()
    assert statuses(came) == [200, 200, 400]
    assert came.index(b"[DONE]") < came.index(b"HTTP/1.1 400")


async def test_who_sends_ahead_without_end_is_read_no_further(serving):
    async with serving(speed=0.5) as client:
        one = client()
        await one.send_raw(post(json.dumps(STREAM).encode()))
        sent = await sent_until_held_up(one, GET * 10_000)
    assert sent < 20_000_000


async def test_who_asks_and_never_reads_is_answered_no_further(serving):
    ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving() as client:
        one = client()
        await one.send_raw(b"")
        one.writer.transport.pause_reading()
        sent = await sent_until_held_up(one, ask * 2000)
    assert sent < 20_000_000


@pytest.mark.parametrize("tokens", [4096, 1 << 20, 10_000_000])
def test_the_longest_prompt_has_room_in_a_body(tokens):
    body = json.dumps({"prompt": [200_000] * 1000}).encode()
    assert (
        len(body) / 1000 * tokens
        < limits_of_context(tokens).body_bytes
        <= max(16 << 20, 16 * tokens)
    )


METHODS = [b"GET", b"POST", b"HEAD", b"CONNECT", b"PRI", b"OPTIONS", b"get"]
PATHS = [b"/v1/completions", b"/tokenize", b"/metrics", b"/health", b"*", b"//", b"/%00", b"x:80"]
HEADERS = [
    *(b"Upgrade: h2c", b"Connection: Upgrade", b"Connection: close", b"Expect: 100-continue"),
    *(b"Transfer-Encoding: gzip", b"Content-Length: 5", b"Authorization: \xff", b"No colon"),
    *(b" folded", b"X: " + b"z" * 900, b"Content-Length: 99999999999999999999"),
]  # fmt: skip


def nonsense(draw):
    """A request that is wrong in some ways, or in none."""
    body = json.dumps({"prompt": [1] * 5, "max_tokens": draw.choice([2, -1, None])}).encode()
    headers = [b"Content-Length: %d" % (len(body) + draw.choice([0, 0, 0, 1, -1]))]
    if draw.random() < 0.3:
        headers = [b"Transfer-Encoding: chunked"]
        body = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, draw.choice([b"", b"X: y\r\n"]))
    headers += draw.choices(HEADERS, k=draw.randrange(3))
    version = draw.choice([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b""])
    line = b" ".join((draw.choice(METHODS), draw.choice(PATHS), version))
    raw = bytearray(b"\r\n".join((line, b"Host: x", *headers, b"", body)))
    for _ in range(draw.choice([0, 0, 0, 3])):
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    return bytes(raw[: draw.randrange(len(raw))] if draw.random() < 0.1 else raw)


@pytest.mark.parametrize("seed", range(3))
async def test_nonsense_of_all_kinds_leaves_nothing_behind(serving, seed):
    draw, errors = random.Random(seed), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    limits = msgspec.structs.replace(SMALL, connections=30, pipelined=4, held_bytes=100_000)
    async with serving(limits=limits, speed=1000.0) as client:

        async def asks():
            for _ in range(20):
                one = client()
                try:
                    await one.send_raw(*(nonsense(draw) for _ in range(draw.randrange(1, 6))))
                    if draw.random() < 0.5:
                        one.writer.write_eof()
                        await one.rest()
                except OSError:  # it was refused before all was sent
                    continue
                finally:
                    one.close()

        await asyncio.gather(*(asks() for _ in range(10)))
        await asyncio.sleep(0.05)
        assert (await client().ask("GET", "/health")).status == 200
    assert errors == []

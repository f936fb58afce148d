"""A server of the usual routes whose answers never end, but for the first completion.

`--kind` says what has no end: `event`, `chunk`, `head`, `interim`, `error`, `html`,
`models` (the list of models) or `metrics`. Others have an end and no sense: `infinite` (metrics),
`deep` (a list of models), `tokens` (their number).
"""

import argparse
import contextlib
import socket
import sys
import threading

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n\r\n"
NOISE = b"x" * 100_000
EVENT = b'data: {"choices":[{"text":" a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
GOOD = OK + b"Content-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(EVENT) + EVENT
MANY = EVENT.replace(b'"}]}', b'"}],"usage":{"completion_tokens":2147483647}}')
INFINITE = "".join(
    f'vllm:{name}{{engine="0"}} +Inf\n'
    for name in ("num_requests_running", "prompt_tokens_total", "generation_tokens_total")
).encode()
DEEP = b'{"data":[],"x":' + b"[" * 100_000
LIST = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'
FLOODS = {
    "event": (STREAM + b"data: ", NOISE),
    "chunk": (STREAM[:-2] + b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n", NOISE),
    "head": (OK + b"X: ", NOISE),
    "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4000),
    "error": (b"HTTP/1.1 500 No\r\n\r\nit is broken ", NOISE),
    "html": (OK + b"Content-Type: text/html\r\n\r\n", NOISE),
}


def asked(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            while len(body) < int(value):
                body += connection.recv(65536)
    return head


def pour(connection, beginning, block):
    connection.sendall(beginning)
    while True:
        connection.sendall(block)


def whole(body):
    return OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def serve(connection, kind, answered):
    with connection, contextlib.suppress(OSError):
        while head := asked(connection):
            path = head.split()[1]
            if head.startswith(b"POST") and not answered:
                answered.append(path)
                connection.sendall(GOOD)
            elif head.startswith(b"POST") and kind == "tokens":
                connection.sendall(OK + b"Content-Length: %d\r\n\r\n%b" % (len(MANY), MANY))
            elif head.startswith(b"POST") and kind not in FLOODS:
                connection.sendall(GOOD)
            elif head.startswith(b"POST"):
                pour(connection, *FLOODS[kind])
            elif path.startswith(b"/metrics") and kind == "infinite":
                connection.sendall(whole(INFINITE))
            elif path.startswith(b"/v1/models") and kind == "deep":
                connection.sendall(whole(DEEP))
            elif path.startswith(b"/metrics") and kind == "metrics":
                line = b'vllm:num_requests_running{engine="0"} 1\n'
                pour(connection, OK + b"\r\n", line * 2000)
            elif path.startswith(b"/v1/models") and kind == "models":
                pour(connection, OK + b"\r\n[", NOISE)
            elif path.startswith(b"/v1/models"):
                connection.sendall(whole(LIST))
            else:
                connection.sendall(whole(b""))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", default="event")
    arguments, _ = parser.parse_known_args()
    with socket.create_server(("127.0.0.1", arguments.port), backlog=128) as listener:
        sys.stdout.write(f"listening on {listener.getsockname()[1]}\n")
        sys.stdout.flush()
        given = (arguments.kind, [])
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, *given), daemon=True).start()


if __name__ == "__main__":
    main()

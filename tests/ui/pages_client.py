"""Client of a server of pages, which reads their events."""

import contextlib
import http.client
import json
import time

PATIENCE_S = 40


class Pages:
    """Client of a server of pages.

    Attributes:
        port: Port of the server.
        token: Token of its POSTs.
        app: Its application, where it is of this process.
    """

    def __init__(self, port, token, app=None):
        self.port, self.token, self.app = port, token, app

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path, method="GET", body=None, **headers):
        """Status, headers and text of one answer; `Host` and other headers as they are given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()

    def post(self, key, **order):
        """Status and answer of an order, with the right token unless another is given."""
        body = json.dumps({"token": self.token, **order})
        status, _, text = self.ask(f"/runs/{key}/control", "POST", body)
        return status, json.loads(text)

    @contextlib.contextmanager
    def events(self, path, **headers):
        """Events of a stream as (name, id, decoded data), one by one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            assert answer.getheader("Content-Type").startswith("text/event-stream")
            yield _events(answer)

    def rows(self, wanted=lambda _: True):
        """Rows of the index by name, the first that are all read and for which `wanted` holds."""
        with self.events("/events") as events:
            for _, _, rows in events:
                found = {row["name"]: row for row in rows}
                if all(row["read"] for row in rows) and wanted(found):
                    return found
        raise AssertionError("the stream ended")


def _events(answer):
    event, deadline_s = {}, time.monotonic() + PATIENCE_S
    while line := answer.readline():
        assert time.monotonic() < deadline_s, "what was awaited did not come"
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name in ("event", "id", "data"):
            event[name] = value
        elif not name and "data" in event:
            yield event["event"], event.get("id", ""), json.loads(event["data"])
            event = {}


def first(events, name, wanted=lambda _: True):
    """The first event of a name for which `wanted` holds; its id and data."""
    for event, number, data in events:
        if event == name and wanted(data):
            return number, data
    raise AssertionError("the stream ended")

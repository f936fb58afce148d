"""One connection at a time and many: keeping, retrying, failing, and what hostile servers do."""

import gc
import socket
import time

import pytest

from servetune.traffic.connection import Address, Connection, monotonic
from servetune.traffic.reactor import SILENT_S, Reactor

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 20_000_000


def read_on(byte_count):
    """A step that reads so many bytes."""

    def read(sock):
        left = byte_count
        while left > 0:
            data = sock.recv(1 << 20)
            if not data:
                return
            left -= len(data)

    return read


class TestKeeping:
    def test_a_connection_is_kept_and_used_again(self, scripted, client, whole):
        server = scripted([[whole(b"one")], [whole(b"two")]])
        asker = client(server.port)
        first, kept = asker.ask()
        second, again = asker.ask()
        assert (kept.content, again.content) == (b"one", b"two")
        assert (kept.status, kept.kind) == (200, "text/plain")
        assert (first.reused, second.reused) == (False, True)
        assert first.connect_s > 0
        assert second.connect_s is None
        assert len(server.came) == 1
        assert (asker.reactor.opened_count, asker.reactor.reused_count) == (1, 1)

    def test_calls_in_flight_never_share_a_connection_nor_open_more_than_needed(
        self, scripted, client, whole
    ):
        server = scripted([[whole()]] * 3)
        asker = client(server.port)
        for _ in range(3):
            assert [call.answer.content for call in asker.ask_many(4)] == [b"hello"] * 4
        assert asker.reactor.opened_count == len(server.came) == 4
        assert asker.reactor.reused_count == 8

    def test_connection_close_is_obeyed(self, scripted, client, whole):
        server = scripted([[whole(b"one", b"Connection: close")]], [[whole()]])
        asker = client(server.port)
        asker.ask()
        asker.ask()
        assert (asker.reactor.reused_count, len(server.came)) == (0, 2)

    def test_http_1_0_closes_unless_it_says_otherwise(self, scripted, client, whole):
        old = whole().replace(b"HTTP/1.1", b"HTTP/1.0")
        kept = whole(b"x", b"Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
        server = scripted([[old]], [[kept], [kept]])
        asker = client(server.port)
        for _ in range(3):
            assert asker.ask()[0].outcome == "ok"
        assert (asker.reactor.reused_count, len(server.came)) == (1, 2)

    def test_an_idle_connection_that_the_server_closed_is_not_used(self, scripted, client, whole):
        server = scripted([[whole(), None]], [[whole()]])
        asker = client(server.port)
        asker.ask()
        asker.run_until(lambda: asker.reactor._idle == [[]])
        assert asker.ask()[0].outcome == "ok"
        assert (asker.reactor.reused_count, asker.reactor.retried_count) == (0, 0)
        assert len(server.came) == 2

    def test_a_second_answer_to_one_question_costs_the_connection(self, scripted, client, whole):
        server = scripted([[whole(b"one") + whole(b"extra")]], [[whole(b"two")]])
        asker = client(server.port)
        assert asker.ask()[1].content == b"one"
        assert asker.ask()[1].content == b"two"
        assert len(server.came) == 2

    def test_so_does_one_behind_an_answer_in_chunks_and_nothing_waits_for_it(
        self, scripted, client, whole
    ):
        server = scripted([[CHUNKED, 0.02, b"3\r\none\r\n0\r\n\r\n" + whole()]], [[whole(b"two")]])
        asker = client(server.port)
        assert asker.ask()[1].content == b"one"
        assert asker.ask()[1].content == b"two"
        assert len(server.came) == 2

    def test_unasked_words_on_an_idle_connection_cost_it(self, scripted, client, whole):
        server = scripted([[whole(), 0.02, b"by the way"]], [[whole()]])
        asker = client(server.port)
        asker.ask()
        asker.run_until(lambda: asker.reactor._idle == [[]])
        assert asker.ask()[1].content == b"hello"
        assert len(server.came) == 2


class TestTimes:
    def test_times_are_of_the_bytes_arrival_and_in_order(self, scripted, client):
        steps = [CHUNKED]
        for i in range(5):
            steps += [0.02, b"1\r\n%d\r\n" % i]
        server = scripted([[*steps, b"0\r\n\r\n"]])
        before_s = time.monotonic()
        call, kept = client(server.port).ask()
        assert kept.content == b"01234"
        ordered = [before_s, call.sent_s, *kept.times_s, call.end_s, time.monotonic()]
        assert ordered == sorted(ordered)
        # 0.08 s apart where they left; a client that comes late to the first sees them closer.
        assert kept.times_s[-1] - kept.times_s[0] >= 0.03

    @pytest.mark.timed  # the kernel begins to stamp when it finds the time
    def test_a_process_that_was_busy_does_not_shift_them(self, scripted, client):
        sent_s = []
        server = scripted([[CHUNKED, 0.02, b"1\r\na\r\n", lambda _: sent_s.append(monotonic())]])
        asker = client(server.port)
        call = asker.call()
        asker.run_until(lambda: call.answer_began and call.status == 200)
        while not sent_s:
            time.sleep(0.001)
        time.sleep(0.05)  # the fault: nobody reads
        asker.turn(0.02)
        asker.reactor.abandon("cancelled", "enough")
        (at_s,) = call.answer.times_s
        assert at_s <= sent_s[0] + 1e-4  # the clocks' difference is known to microseconds

    def test_a_wall_clock_that_is_stepped_leaves_times_between_their_neighbours(
        self, scripted, client, monkeypatch, whole
    ):
        # A step by an hour, as the first reading after boot may bring; the kernel's stamps
        # are then an hour off, one way and the other.
        server = scripted([[whole()]] * 8)
        for step_s in (3600.0, -3600.0):
            asker = client(server.port)
            reactor = asker.reactor
            right = reactor._set_offset

            def wrong(right=right, reactor=reactor, step_s=step_s):
                now_s = right()
                reactor.offset_s += step_s
                return now_s

            monkeypatch.setattr(reactor, "_set_offset", wrong)
            before_s = monotonic()
            call, kept = asker.ask()
            assert before_s <= call.sent_s <= kept.times_s[0] <= call.end_s <= monotonic()

    def test_what_is_due_never_runs_early_and_in_order(self, client):
        asker = client(1)
        ran = []
        start_s = monotonic()
        for delay_s in (0.03, 0.001, 0.0, 0.0101, 0.002):
            asker.reactor.at(start_s + delay_s, lambda d=delay_s: ran.append((d, monotonic())))
        asker.run_until(lambda: len(ran) == 5)
        assert [delay_s for delay_s, _ in ran] == sorted(delay_s for delay_s, _ in ran)
        assert all(at_s >= start_s + delay_s for delay_s, at_s in ran)


class TestLosing:
    def test_a_request_that_meets_a_connection_just_closed_goes_once_more(
        self, scripted, client, whole
    ):
        server = scripted([[whole(b"one")], [None]], [[whole(b"two")]])
        asker = client(server.port)
        asker.ask()
        call, kept = asker.ask()
        assert kept.content == b"two"
        assert (call.retried, call.outcome) == (True, "ok")
        assert (asker.reactor.retried_count, len(server.came)) == (1, 2)

    def test_the_retry_does_not_hide_its_cost(self, scripted, client, whole):
        received_s = []
        stamp = [lambda _: received_s.append(monotonic()), 0.05, None]
        server = scripted([[whole()], stamp], [[whole()]])
        asker = client(server.port)
        asker.ask()
        call, _ = asker.ask()
        assert call.sent_s <= received_s[0]
        assert call.end_s - call.sent_s >= 0.05

    def test_it_goes_once_more_and_not_twice(self, scripted, client, whole):
        server = scripted([[whole()], [None]], [[None]])
        asker = client(server.port)
        asker.ask()
        call, _ = asker.ask()
        assert (call.outcome, call.status) == ("disconnected", None)
        assert (asker.reactor.retried_count, len(server.came)) == (1, 2)

    def test_a_server_that_dies_on_a_kept_connection_has_not_refused_the_request(
        self, scripted, client, whole
    ):
        server = scripted([[whole()], [lambda _: server.refuse(), None]])
        asker = client(server.port)
        asker.ask()
        call, _ = asker.ask()
        assert (call.outcome, call.retried) == ("disconnected", True)
        assert "connection lost, then cannot connect" in call.detail

    def test_a_fresh_connection_that_is_lost_is_no_reason_to_try_again(self, scripted, client):
        server = scripted([[None]])
        asker = client(server.port)
        call, _ = asker.ask()
        assert call.outcome == "disconnected"
        assert "before any answer" in call.detail
        assert (asker.reactor.retried_count, len(server.came)) == (0, 1)

    def test_a_kept_connection_lost_inside_an_answer_is_no_reason_either(
        self, scripted, client, whole
    ):
        half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"
        server = scripted([[whole()], [half, None]])
        asker = client(server.port)
        asker.ask()
        call, kept = asker.ask()
        assert (call.outcome, call.status) == ("disconnected", 200)
        assert "while answering" in call.detail
        assert kept.content == b"hal"
        assert (asker.reactor.retried_count, len(server.came)) == (0, 1)

    def test_a_reset_in_the_middle_keeps_what_came_and_says_why(self, scripted, client):
        server = scripted([[CHUNKED + b"3\r\none\r\n", 0.05, "reset"]])
        call, kept = client(server.port).ask()
        assert (call.outcome, kept.content) == ("disconnected", b"one")
        assert "reset" in call.detail

    def test_a_server_that_closes_its_half_in_the_middle_is_one_that_hung_up(
        self, scripted, client
    ):
        server = scripted([[CHUNKED + b"3\r\none\r\n5\r\nhal", "half"]])
        call, kept = client(server.port).ask()
        assert (call.outcome, kept.content) == ("disconnected", b"one")

    def test_a_server_that_closes_its_half_after_the_answer_has_answered(
        self, scripted, client, whole
    ):
        server = scripted([[whole(b"one"), "half"]], [[whole(b"two")]])
        asker = client(server.port)
        assert asker.ask()[1].content == b"one"
        asker.run_until(lambda: asker.reactor._idle == [[]])
        assert asker.ask()[1].content == b"two"
        assert asker.reactor.retried_count == 0

    def test_an_answer_without_a_length_ends_with_its_connection(self, scripted, client):
        server = scripted([[b"HTTP/1.1 200 OK\r\n\r\n", b"all of it", None]])
        call, kept = client(server.port).ask()
        assert (call.outcome, kept.content) == ("ok", b"all of it")

    def test_but_not_with_a_reset(self, scripted, client):
        server = scripted([[b"HTTP/1.1 200 OK\r\n\r\n", b"half of it", 0.05, "reset"]])
        call, kept = client(server.port).ask()
        assert (call.outcome, kept.content) == ("disconnected", b"half of it")


class TestRefusing:
    def test_nobody_listening_is_refused(self, scripted, client):
        server = scripted([[None]])
        server.refuse()
        call, _ = client(server.port).ask()
        assert (call.outcome, call.status) == ("refused", None)
        assert call.detail == (
            f"cannot connect to http://127.0.0.1:{server.port}: Connection refused"
        )
        assert call.sent_s <= call.end_s

    @pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".example"])
    def test_a_name_that_does_not_exist_is_refused(self, client, host):
        call, _ = client(80, host=host).ask()
        assert call.outcome == "refused"
        assert f"cannot connect to http://{host}: " in call.detail

    def test_a_name_is_looked_up_once_whether_it_is_found_or_not(self, client, monkeypatch):
        asked = []

        def look_up(host, *_, **__):
            asked.append(host)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        asker = client(80, host="slow.example")
        asker.reactor.prepare()
        calls = asker.ask_many(50)
        assert {call.outcome for call in calls} == {"refused"}
        assert "Temporary failure in name resolution" in calls[0].detail
        assert asked == ["slow.example"]

    def test_the_second_address_of_a_name_is_tried(self, scripted, client, whole, monkeypatch):
        server = scripted([[whole()]])
        two = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", server.port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: two)
        assert client(server.port, host="both.example").ask()[0].outcome == "ok"

    def test_ipv6_is_spoken(self, scripted, client, whole):
        try:
            server = scripted([[whole()]], host="::1")
        except OSError:
            pytest.skip("this machine has no IPv6")
        assert client(server.port, host="::1").ask()[1].content == b"hello"
        server.refuse()
        server.close()
        assert f"http://[::1]:{server.port}" in client(server.port, host="::1").ask()[0].detail

    def test_no_more_files_is_reported_and_breaks_nothing(self, scripted, client, whole):
        import resource

        server = scripted([[whole()]])
        asker = client(server.port)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            call, _ = asker.ask()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert call.outcome == "refused"
        assert call.detail.endswith("Too many open files")

    def test_ten_thousand_calls_to_nobody_are_over_soon_and_nest_in_nothing(self, client):
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        asker = client(port)
        outcomes = []

        def again(call):
            outcomes.append(call.outcome)
            if len(outcomes) < 10_000:
                asker.call(on_done=again)

        asker.call(on_done=again)
        beats = []
        asker.reactor.at(monotonic(), lambda: beats.append(len(outcomes)))
        asker.run_until(lambda: len(outcomes) == 10_000)
        assert set(outcomes) == {"refused"}
        assert beats[0] < 10_000  # others had their turn


class TestNotHttp:
    @pytest.mark.parametrize(
        "garbage",
        [
            b"220 mail.example ESMTP\r\n",
            b"\x15\x03\x01\x00\x02\x02\x46",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 5_000_000,
            CHUNKED + b"zz\r\nhello\r\n",
            CHUNKED + b"2\r\nhello\r\n",
            CHUNKED + b"a" * 1_000_000,
        ],
    )  # fmt: skip
    def test_it_is_malformed_and_said_so(self, scripted, client, garbage):
        call, _ = client(scripted([[garbage]]).port).ask()
        assert call.outcome == "malformed"
        assert call.detail.startswith("not HTTP")
        assert len(call.detail) < 300

    def test_it_is_reported_though_the_server_says_no_more(self, scripted, client):
        good = [b"1\r\n%d\r\n" % i for i in range(3)]
        steps = [step for piece in good for step in (piece, 0.01)]
        server = scripted([[CHUNKED, 0.02, *steps, b"zz\r\nfour\r\n"]])
        call, kept = client(server.port).ask(timeout_s=600.0)
        assert (call.outcome, kept.pieces) == ("malformed", [b"0", b"1", b"2"])
        assert call.end_s <= monotonic()

    def test_silence_alone_is_no_fault(self, scripted, client):
        steps = [CHUNKED, 0.02, b"5\r\nwh", 2 * SILENT_S, b"ole\r\n0\r", 2 * SILENT_S, b"\n\r\n"]
        call, kept = client(scripted([steps]).port).ask()
        assert (call.outcome, kept.content) == ("ok", b"whole")

    def test_what_came_before_it_is_kept(self, scripted, client):
        good = b"3\r\none\r\n3\r\ntwo\r\n"
        server = scripted([[CHUNKED, 0.02, good + b"zz\r\nthree\r\n", None]])
        call, kept = client(server.port).ask()
        assert (call.outcome, kept.pieces) == ("malformed", [b"one", b"two"])

    def test_an_interim_answer_is_not_the_answer(self, scripted, client, whole):
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        for steps in ([interim, 0.02, whole(b"real")], [interim * 2 + whole(b"real")]):
            call, kept = client(scripted([steps]).port).ask()
            assert (kept.status, kept.content, call.status) == (200, b"real", 200)

    def test_answers_without_a_body_end_with_their_head(self, scripted, client):
        for head in (b"204 No Content", b"304 Not Modified", b"200 OK\r\nContent-Length: 0"):
            server = scripted([[b"HTTP/1.1 " + head + b"\r\n\r\n"]] * 2)
            asker = client(server.port)
            assert [asker.ask()[0].outcome for _ in range(2)] == ["ok", "ok"]

    def test_one_byte_at_a_time_is_the_same_answer(self, scripted, client, whole):
        for answer in (whole(b"dribbled"), CHUNKED + b"8\r\ndribbled\r\n0\r\nX: y\r\n\r\n"):
            server = scripted([[answer[i : i + 1] for i in range(len(answer))], [whole()]])
            asker = client(server.port)
            call, kept = asker.ask()
            assert (call.outcome, kept.content) == ("ok", b"dribbled")
            assert asker.ask()[0].reused

    @pytest.mark.parametrize("framing", ["length", "chunk", "closed"])
    def test_a_hundred_megabytes_are_taken(self, scripted, client, framing):
        size, block = 100_000_000, b"x" * 1_000_000
        head = {
            "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size,
            "chunk": CHUNKED,
            "closed": b"HTTP/1.1 200 OK\r\n\r\n",
        }[framing]
        end = {"length": [], "chunk": [b"0\r\n\r\n"], "closed": [None]}[framing]
        if framing == "chunk":
            block = b"%x\r\n%b\r\n" % (len(block), block)
        server = scripted([[head, *[block] * 100, *end]])
        call, kept = client(server.port).ask(timeout_s=60.0)
        assert (call.outcome, sum(map(len, kept.pieces))) == ("ok", size)


class TestSending:
    def test_a_server_that_never_reads_times_out(self, scripted, client):
        server = scripted([[30.0]], reads=False)
        asker = client(server.port)
        before_s = monotonic()
        call, _ = asker.ask(LARGE, timeout_s=0.1)
        assert (call.outcome, call.status) == ("timeout", None)
        assert call.end_s - before_s >= 0.1
        assert asker.reactor.in_flight_count == 0

    def test_a_server_that_reads_slowly_gets_it_all(self, scripted, client, whole):
        server = scripted([[0.1, read_on(len(LARGE) - 65536), whole(b"thanks")]])
        assert client(server.port).ask(LARGE)[1].content == b"thanks"

    def test_an_answer_before_all_was_sent_ends_the_call_and_the_connection(
        self, scripted, client, whole
    ):
        early = whole(b"too large").replace(b"200 OK", b"413 Content Too Large")
        server = scripted([[early, 30.0]], [[whole()]])
        asker = client(server.port)
        call, kept = asker.ask(LARGE)
        assert (call.outcome, kept.status, kept.content) == ("ok", 413, b"too large")
        assert asker.ask()[0].reused is False

    def test_an_answer_then_a_reset_before_all_was_sent_is_still_an_answer(
        self, scripted, client, whole
    ):
        early = whole(b"too large").replace(b"200 OK", b"413 Content Too Large")
        for lateness_s in (0.0, 0.2):
            asker = client(scripted([[early, 0.05, "reset"]]).port)
            call = asker.call(LARGE)
            time.sleep(lateness_s)  # the reset is there before the answer has been read
            asker.run_until(lambda call=call: call.done)
            assert (call.outcome, call.status) == ("ok", 413)

    def test_a_server_that_begins_to_answer_early_is_sent_the_rest(self, scripted, client):
        # As those do that answer 100 Continue unasked, or stream what they make of the request.
        for begin in (b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED, CHUNKED, CHUNKED[:20]):
            rest = (b"" if begin.endswith(CHUNKED) else CHUNKED[20:]) + b"3\r\nall\r\n0\r\n\r\n"
            server = scripted([[begin, 0.05, read_on(len(LARGE) - 65536), rest]])
            call, kept = client(server.port).ask(LARGE)
            assert (call.outcome, kept.content) == ("ok", b"all")

    def test_a_server_that_hangs_up_while_it_is_sent_to_is_lost(self, scripted, client):
        for step in (None, "reset"):
            call, _ = client(scripted([[0.02, step]]).port).ask(LARGE)
            assert call.outcome == "disconnected"
            assert "before any answer" in call.detail


class TestEnding:
    def test_silence_times_out_and_its_connection_is_given_up(self, scripted, client, whole):
        server = scripted([[b"HTTP/1.1 200 OK\r\n"]], [[whole()]])
        asker = client(server.port)
        before_s = monotonic()
        call, _ = asker.ask(timeout_s=0.05)
        assert call.outcome == "timeout"
        assert call.detail == "no whole answer within 0.05 s"
        assert call.end_s - before_s >= 0.05
        assert asker.ask()[0].outcome == "ok"
        assert len(server.came) == 2

    def test_a_time_out_keeps_the_tokens_that_came(self, scripted, client):
        server = scripted([[CHUNKED, 0.01, b"3\r\none\r\n"]])
        call, kept = client(server.port).ask(timeout_s=0.5)
        assert (call.outcome, kept.content) == ("timeout", b"one")

    def test_a_connection_that_is_never_made_times_out_from_when_it_was_begun(self, client):
        # A full backlog: Linux drops what comes then, as a firewall would.
        with socket.create_server(("127.0.0.1", 0), backlog=1) as full:
            where = full.getsockname()
            others = [socket.socket() for _ in range(4)]
            for other in others:
                other.setblocking(False)
                other.connect_ex(where)
            time.sleep(0.05)
            asker = client(where[1])
            before_s = monotonic()
            call = asker.call(timeout_s=0.1)
            begun_s = monotonic()
            asker.run_until(lambda: call.done)
            for other in others:
                other.close()
        assert call.outcome == "timeout"
        assert call.connect_s is None
        assert before_s <= call.sent_s <= begun_s

    def test_time_outs_are_per_call_and_leave_the_others_alone(self, scripted, client, whole):
        server = scripted([[30.0]], [[0.15, whole()]])
        asker = client(server.port)
        silent = asker.call(timeout_s=0.1)
        asker.run_until(lambda: len(server.asked) == 1)
        spoken = asker.call(timeout_s=10.0)
        asker.run_until(lambda: silent.done and spoken.done)
        assert (silent.outcome, spoken.outcome) == ("timeout", "ok")

    def test_abandoned_calls_end_at_once_with_the_reason_given(self, scripted, client):
        server = scripted([[30.0]])
        asker = client(server.port)
        calls = [asker.call() for _ in range(3)]
        asker.run_until(lambda: len(server.asked) == 3)
        asker.reactor.abandon("cancelled", "enough")
        asker.turn(0.0)
        assert {(one.outcome, one.detail) for one in calls} == {("cancelled", "enough")}
        assert asker.reactor.in_flight_count == asker.reactor.in_flight_to(0) == 0

    def test_done_is_reported_once_and_counts_come_back_to_nothing(self, scripted, client, whole):
        server = scripted([[whole()]] * 3)
        asker = client(server.port, server.port)
        told = []
        calls = [asker.call(on_done=told.append, target=i % 2) for i in range(6)]
        assert (asker.reactor.in_flight_to(0), asker.reactor.in_flight_to(1)) == (3, 3)
        asker.run_until(lambda: len(told) == 6)
        asker.reactor.abandon("cancelled", "nobody is left")
        asker.turn(0.01)
        assert sorted(call.index for call in told) == [call.index for call in calls]
        assert (asker.reactor.in_flight_to(0), asker.reactor.in_flight_to(1)) == (0, 0)

    def test_a_mistake_in_a_reader_is_raised_and_not_blamed_on_the_server(
        self, scripted, client, whole
    ):
        asker = client(scripted([[whole()]]).port)
        call = asker.call()

        def broken(pieces, times_s):
            raise RuntimeError("a bug")

        call.answer.take = broken
        with pytest.raises(RuntimeError, match="a bug"):
            asker.run_until(lambda: call.done)

    def test_closed_connections_leave_nothing_behind_without_a_collector(
        self, scripted, client, whole
    ):
        server = scripted([[whole(b"bye", b"Connection: close")]])
        asker = client(server.port)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                asker.ask_many(4)
            asker.ask(timeout_s=0.0)
            left = [one for one in gc.get_objects() if type(one) is Connection]
        finally:
            gc.enable()
        assert left == []


class TestTls:
    def test_tls_is_spoken_when_the_address_says_https(self, scripted, client, whole, certificate):
        path, context = certificate
        server = scripted([[whole(b"secret")]] * 3, tls=context)
        asker = client(server.port, scheme="https", cafile=path)
        for _ in range(3):  # session tickets that come in between do not cost the connection
            call, kept = asker.ask()
            assert (call.outcome, kept.content) == ("ok", b"secret")
            asker.turn(0.02)
        assert (asker.reactor.opened_count, asker.reactor.reused_count) == (1, 2)

    def test_a_stranger_is_refused(self, scripted, client, whole, certificate):
        server = scripted([[whole()]], tls=certificate[1])
        call, _ = client(server.port, scheme="https").ask()
        assert call.outcome == "refused"
        assert "certificate" in call.detail.lower()

    def test_a_server_that_does_not_speak_it_is_refused(self, scripted, client, certificate):
        for steps in ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], [None]):
            call, _ = client(scripted([steps]).port, scheme="https", cafile=certificate[0]).ask()
            assert call.outcome == "refused"

    def test_a_large_request_is_sent_whole_though_tickets_come_meanwhile(
        self, scripted, client, whole, certificate
    ):
        path, context = certificate
        script = [[0.1, read_on(len(LARGE)), whole(b"all")]]
        server = scripted(script, tls=context, reads=False)
        call, kept = client(server.port, scheme="https", cafile=path).ask(LARGE)
        assert (call.outcome, kept.content) == ("ok", b"all")

    def test_an_answer_and_the_end_in_one_read_are_an_answer(
        self, scripted, client, whole, certificate
    ):
        path, context = certificate
        for answer in (whole(b"bye"), CHUNKED + b"3\r\nbye\r\n0\r\n\r\n"):
            server = scripted([[answer, None]], tls=context)
            call, kept = client(server.port, scheme="https", cafile=path).ask()
            assert (call.outcome, kept.content) == ("ok", b"bye")

    def test_a_stream_that_breaks_off_keeps_what_came(self, scripted, client, certificate):
        path, context = certificate
        server = scripted([[CHUNKED, b"3\r\none\r\n", None]], tls=context)
        call, kept = client(server.port, scheme="https", cafile=path).ask()
        assert (call.outcome, kept.content) == ("disconnected", b"one")


def test_an_idle_connection_of_another_address_is_not_borrowed(scripted, client, whole):
    one, two = scripted([[whole(b"one")]] * 3), scripted([[whole(b"two")]] * 3)
    asker = client(one.port, two.port)
    assert [asker.ask(target=i)[1].content for i in (0, 1, 0, 1)] == [b"one", b"two"] * 2
    assert asker.reactor.opened_count == 2


def test_an_address_is_shown_as_one_would_write_it():
    shown = [
        str(Address(scheme=scheme, host=host, port=port))
        for scheme, host, port in (
            ("http", "a.example", 80),
            ("https", "a.example", 80),
            ("http", "::1", 9),
        )
    ]
    assert shown == ["http://a.example", "https://a.example:80", "http://[::1]:9"]


def test_a_reactor_that_is_told_to_stop_before_it_runs_does_not_run():
    reactor = Reactor([])
    reactor.stop()
    reactor.run()
    reactor.close()

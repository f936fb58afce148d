import contextlib
import os
import socket

import pytest

from servetune.errors import EngineError, PortBusy
from servetune.servers.ports import (
    claimed_port,
    free_port,
    listening_pids,
    listening_ports,
    listens_among,
    reachable_host,
    require_free_port,
)


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_a_free_port_can_be_listened_on():
    require_free_port("127.0.0.1", free_port())


def test_a_port_where_somebody_listens_is_busy_on_every_address_that_includes_it(listener):
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(PortBusy) as caught:
            require_free_port(host, listener)
        assert caught.value.port == listener


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(EngineError, match=r"cannot listen on 192\.0\.2\.1:8000"):
        require_free_port("192.0.2.1", 8000)


def test_the_owner_of_a_listening_socket_is_reported(listener):
    assert listens_among([os.getpid()], listener) is True
    assert listens_among([], listener) is False
    assert listens_among([os.getpid()], free_port()) is None


def test_a_connection_that_has_gone_does_not_make_the_port_busy():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server_side, _ = sock.accept()
            server_side.close()  # the server's side closes first and waits
            assert client.recv(1) == b""
    require_free_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.1.2.3", "10.1.2.3")]
)
def test_a_server_on_all_addresses_is_reached_on_loopback(host, reached):
    assert reachable_host(host) == reached


def test_ports_of_servers_side_by_side_differ():
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(claimed_port()) for _ in range(50)]
    assert len(set(ports)) == 50


def test_a_port_that_was_named_is_one_servers_at_a_time():
    port = free_port()
    with claimed_port(given=port) as mine:
        assert mine == port
        with pytest.raises(PortBusy), claimed_port(given=port):
            pass
    with claimed_port(given=port) as again:
        assert again == port


def test_who_listens_is_told_from_both_sides():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port in listening_ports(os.getpid())
        assert listening_pids(port) == [os.getpid()]
    assert port not in listening_ports(os.getpid())
    assert listening_pids(port) == []

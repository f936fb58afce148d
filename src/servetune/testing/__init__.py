"""Substitutes that anyone may test against: real sockets, known truth."""

from servetune.testing.server import Behaviour, FakeServer, Truth, running_server

__all__ = ["Behaviour", "FakeServer", "Truth", "running_server"]

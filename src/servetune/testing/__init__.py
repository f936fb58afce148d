"""Substitutes that anyone may test against: real sockets, known truth.

`servetune.testing.engine_contract` holds an engine of your own to what servetune relies on; it is
not imported here, so that the fake server starts as fast as it can.
"""

from servetune.testing.server import Behaviour, FakeServer, Truth, running_server

__all__ = ["Behaviour", "FakeServer", "Truth", "running_server"]

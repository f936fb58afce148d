"""The part of the load generator that runs in a process of its own: it sends and stamps.

Nothing here imports more than the standard library and msgspec, so that a process is soon up,
stays small, and has no garbage but its own. See docs/design/0007.
"""

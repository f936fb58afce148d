"""Queues by formula: waits for a server, and chances that all places are taken."""

from __future__ import annotations

import numpy as np

from servetune.perf.roofline.step_laws import Array

#: Share of places that are taken at most, as a chance that all are is computed below saturation.
_SATURATED = 0.98
#: Difference of two logarithms of numbers of requests at least.
_NEAR = 1e-6
#: Power of the number inside at most by which those inside slow each other down.
MOST_GROWTH = 0.95


def variation_of_servers(busy: Array, servers: Array, variation: Array) -> Array:
    """`variation` of `queue_s` for a number of servers, as if they were one that is as fast.

    Args:
        busy: Share of all servers that is busy.
        servers: Servers, one at least.
        variation: That of one server: 1 + cv^2 of its times, or Kingman's sum of the squared
            coefficients of variation of arrivals and service.
    """
    return np.asarray(variation * np.minimum(1.0, busy) ** (np.sqrt(2 * (servers + 1)) - 2))


def all_taken(inside: Array, full: Array, places: Array) -> Array:
    """Chance that all places are taken at an arrival, by a birth and death process.

    Those inside leave the more slowly the more there are, by a power of their number. With a power
    of zero it is Erlang's C formula, by Stirling's approximation.

    Args:
        inside: Requests that have a place, on average.
        full: Requests that would have one if all took as long as while every place is taken.
        places: Places.
    """
    inside = np.minimum(inside, places)
    busy = np.minimum(full / places, _SATURATED)
    far = np.maximum(np.log(places / inside), _NEAR)
    growth = np.clip(np.log(full / inside) / far, 0.0, MOST_GROWTH)
    reached = np.exp(-(1 - growth) * (places * far - (places - inside)))
    at = reached * np.sqrt((1 - growth) / (2 * np.pi * inside))
    beyond = at / (1 - busy)
    return np.asarray(beyond / (1 - reached / 2 + beyond))


def queue_s(requests: Array, busy: Array, rate: Array, variation: Array) -> Array:
    """Mean wait in a queue that is empty when the run begins.

    For a long run it is variation * x^2 / (2 rate (1 - x)) for a server that is busy for the
    fraction x: of M/G/1 for a variation of 1 + cv^2, that of its service, of M/G/k times
    x^(sqrt(2 (k + 1)) - 2) (Sakasegawa, An approximation formula for L_q, Ann. Inst. Statist. Math.
    29, 1977), where one more x takes off the residual of what is in service. Beyond x = 1 the queue
    grows for as long as requests come: T (x - 1) / 2 is the mean. What joins both is
    Akcelik's formula of a queue within a time T (Rouphail and Akcelik, Oversaturation delay
    estimates with consideration of peaking, Transportation Research Record 1365, 1992).
    """
    over = busy - 1
    rooted = np.sqrt(over**2 + 4 * variation * busy**2 / requests)
    return np.asarray(requests / rate / 4 * (over + rooted))

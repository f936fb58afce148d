"""Runs made of arithmetic: queues whose truth is known."""

import heapq
from array import array

import numpy as np
import pytest

from servetune.metrics import Record


@pytest.fixture
def open_loop():
    """FIFO queue in an open loop: Poisson arrivals, some servers, exponential service."""

    def run(rate_per_s, count, *, servers=1, capacity_per_s=1.0, seed=0):
        rng = np.random.default_rng(seed)
        due_s = np.cumsum(rng.exponential(1 / rate_per_s, count))
        service_s = rng.exponential(servers / capacity_per_s, count)
        free_s = [0.0] * servers
        records = []
        for index in range(count):
            begin_s = max(heapq.heappop(free_s), due_s[index])
            end_s = begin_s + service_s[index]
            heapq.heappush(free_s, end_s)
            first_s = begin_s + 0.1 * service_s[index]
            records.append(_record(index, due_s[index], np.linspace(first_s, end_s, 5)))
        return records

    return run


@pytest.fixture
def closed_loop():
    """Users who ask again at once; the first answers are late, as prompts come together."""

    def run(users, count, *, seed=0, late_s=3.0, tokens=10):
        rng = np.random.default_rng(seed)
        free_s = [0.0] * users
        records = []
        for index in range(count):
            due_s = heapq.heappop(free_s)
            ttft_s = 0.05 * rng.lognormal(0, 0.3) + (late_s * rng.random() if due_s == 0 else 0)
            end_s = due_s + ttft_s + rng.exponential(1.0)
            records.append(_record(index, due_s, np.linspace(due_s + ttft_s, end_s, tokens)))
            heapq.heappush(free_s, end_s)
        return records

    return run


def _record(index, due_s, times_s):
    return Record(
        index=index,
        input_tokens=10,
        output_tokens=len(times_s),
        due_s=float(due_s),
        sent_s=float(due_s),
        end_s=float(times_s[-1]),
        chunk_times_s=array("d", times_s),
    )

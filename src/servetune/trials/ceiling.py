"""Ceiling of the load generator: the highest load that this machine sends on time.

Streams of the echo server (`loadgen/echo.py`) tick fifty times a second, as an engine's steps do.
Their number grows step by step, until requests leave late, a sender process is busy, or fewer
tokens arrive than should: the step before is what can be trusted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from servetune.loadgen import LoadResult, LoadSettings, Target, run_load_blocking
from servetune.metrics import summarize
from servetune.servers import ServerOptions, ServerProcess, claimed_port
from servetune.units import format_seconds
from servetune.workload import workload_from_client_args
from servetune.workload.prompts import token_prompts

STREAMS = (16, 64, 256, 1024, 2048)
TICK_S = 0.020
TOKENS = 150  # of each stream: three seconds
RAMP_S = 1.0  # within which they begin
INPUT_TOKENS = 32
VOCAB = 32_000

#: Lateness of a departure, and excess of a token gap over a tick, that a step may have.
LATE_S = 0.010  # half a tick
SLOWER = 1.10
BUSY_FRACTION = 0.9


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """Step of the measurement: so many streams at once.

    Attributes:
        streams: Streams at the same time.
        offered_tokens_per_s: Rate that the server means to send.
        tokens_per_s: Rate that arrived while all streamed: a token per stream and mean gap.
        late_s: Lateness of departures, at the 99th percentile.
        processes: Sender processes.
        busy_fraction: Share of a core that the busiest of them used.
        limit: Reason why the step fell short; empty if it did not.
    """

    streams: int
    offered_tokens_per_s: float
    tokens_per_s: float
    late_s: float
    processes: int
    busy_fraction: float
    limit: str = ""


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the measurement.

    Attributes:
        rungs: Steps from the smallest; the last one may have a limit.
    """

    rungs: tuple[Rung, ...]

    @property
    def trusted(self) -> Rung | None:
        """Highest step without a limit."""
        return next((rung for rung in reversed(self.rungs) if not rung.limit), None)

    @property
    def words(self) -> str:
        """Result in a sentence."""
        best, last = self.trusted, self.rungs[-1]
        if best is None:
            return (
                f"not even {last.streams} streams can be timed here: {last.limit}; "
                "something else uses this machine's cores"
            )
        summary = (
            f"{best.tokens_per_s:,.0f} tokens/s over {best.streams} streams are timed, with "
            f"requests that leave {format_seconds(best.late_s)} late (p99)"
        )
        if last.limit:
            return f"{summary}; at {last.streams} streams {last.limit}"
        return f"{summary}, and more was not tried"


def load_ceiling(
    say: Callable[[str], None] = lambda _: None, *, streams: Sequence[int] = STREAMS
) -> Ceiling:
    """Measure step by step until one falls short; some five seconds a step.

    Raises:
        EngineError: The echo server does not start.
        LoadError: It does not answer.
    """
    rungs: list[Rung] = []
    with tempfile.TemporaryDirectory() as folder, claimed_port() as port:
        command = (sys.executable, "-m", "servetune.loadgen.echo", "--port", str(port))
        log_path = Path(folder) / "echo.log"
        echo = ServerProcess(
            (*command, "--tick-ms", str(TICK_S * 1000)),
            log_path=log_path,
            port=port,
            options=ServerOptions(name="echo"),
        )
        with echo:
            echo.wait_ready(60)
            for count in streams:
                rung = _climbed(echo.url, count)
                if rung.limit:  # once may be chance: another process ran at that moment
                    again = _climbed(echo.url, count)
                    rung = rung if again.limit else again
                rungs.append(rung)
                say(
                    f"{count} streams: {rungs[-1].tokens_per_s:,.0f} of "
                    f"{rungs[-1].offered_tokens_per_s:,.0f} tokens/s"
                    + (f"; {rungs[-1].limit}" if rungs[-1].limit else "")
                )
                if rungs[-1].limit:
                    break
    return Ceiling(rungs=tuple(rungs))


def _climbed(url: str, streams: int) -> Rung:
    workload = workload_from_client_args(
        {
            "num_prompts": streams,
            # Within a second, as users come; all at once, each thousandth would wait for the first.
            "request_rate": streams / RAMP_S,
            "random_input_len": INPUT_TOKENS,
            "random_output_len": TOKENS,
            "random_range_ratio": 1.0,
            "warmup_requests": 0,
        }
    )
    prompts = token_prompts(workload.requests(), VOCAB, seed=1)
    loaded = run_load_blocking(
        Target(base_url=url, model="echo"),
        workload,
        prompts,
        settings=LoadSettings(processes="auto"),
    )
    results = summarize(loaded.records, duration_s=loaded.duration_s, extras=False)
    gap_s = (results["mean_tpot_ms"] or 0.0) / 1000
    instrument = loaded.instrument
    rung = Rung(
        streams=streams,
        offered_tokens_per_s=streams / TICK_S,
        tokens_per_s=streams / gap_s if gap_s else 0.0,
        late_s=instrument.sent_late_p99_s or 0.0,
        processes=instrument.process_count,
        busy_fraction=instrument.busy_fraction,
    )
    return msgspec.structs.replace(rung, limit=_limit_of(rung, loaded, gap_s))


def _limit_of(rung: Rung, loaded: LoadResult, gap_s: float) -> str:
    failed = sum(record.outcome != "ok" for record in loaded.records)
    if failed:
        first = next(record for record in loaded.records if record.outcome != "ok")
        return f"{failed} requests failed ({first.outcome}: {first.detail})"
    if rung.busy_fraction > BUSY_FRACTION:
        return f"a process that sends was busy for {rung.busy_fraction:.0%} of a core"
    if rung.late_s > LATE_S:
        return f"requests left {format_seconds(rung.late_s)} late (p99)"
    if gap_s > SLOWER * TICK_S:
        return (
            f"tokens came {gap_s / TICK_S - 1:.0%} late while the client was busy for "
            f"{rung.busy_fraction:.0%} of a core: the echo server or the cores are the limit"
        )
    return ""

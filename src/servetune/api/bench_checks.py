"""Options of bench that contradict one another, found before anything is read."""

from __future__ import annotations

from servetune.api.bench_request import Bench, values_of
from servetune.errors import InputError
from servetune.metrics import LATENCIES, PrecisionTarget, parse_constraints

#: Option, options of which it needs one, and a hint.
_NEEDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("grace_s", ("duration_s", "until"), "it is what requests in flight get at such an end"),
    ("keep_saturated", ("rate", "arrivals", "trace"), "a closed loop is never saturated"),
)


def option_of(name: str) -> str:
    """An option as a user writes it: `--grace` of `grace_s`."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def require_agreement(request: Bench) -> None:
    """Refuse options that speak about something that is not there, or against one another.

    Raises:
        InputError: The first such option, and what to do.
    """
    for name, needed, hint in _NEEDS:
        if _given(request, name) and not any(_given(request, other) for other in needed):
            others = " or ".join(option_of(other) for other in needed)
            raise InputError(f"{option_of(name)} has no meaning without {others}", hint=hint)
    for other in ("min_tokens", "strict_length"):
        if request.load.stop_at_eos and values_of(request).get(other):
            raise InputError(
                "answers that end where the model ends them have no length of their own: "
                f"--stop-at-eos and {option_of(other)} contradict each other",
                hint="leave one of them out",
            )
    if request.server.routing and len(request.server.urls) < 2:
        raise InputError("--routing needs several servers", hint="name two URLs or more")
    if request.results.dcgm_url and not request.results.scrape_s:
        raise InputError("--dcgm is asked as often as --scrape-every says, which is never")
    _require_measured(request)


def _given(request: Bench, name: str) -> bool:
    return values_of(request).get(name) not in (None, False, ())


def _require_measured(request: Bench) -> None:
    """Refuse limits on what an answer in one piece cannot show."""
    why = ""
    if request.load.no_stream:
        why = "with --no-stream answers come whole"
    elif request.load.api == "embeddings":
        why = "embeddings come whole"
    limits = parse_constraints(request.limits.constraints or "")
    asked = [("--constraints", limit.metric) for limit in limits]
    for limit in parse_constraints(request.results.slo or ""):
        if limit.metric not in LATENCIES:
            raise InputError(
                f"--slo judges single requests, and none has a {limit.metric}",
                hint=f"it takes {', '.join(LATENCIES)}; --constraints judges the whole run",
            )
        asked.append(("--slo", limit.metric))
    if request.load.until:
        asked.append(("--until", PrecisionTarget.parse(request.load.until).metric))
    for option, metric in asked:
        if why and metric in LATENCIES and metric != "e2e_latency":
            raise InputError(
                f"{why}, there is no {metric} for {option}", hint="e2e_latency can be measured"
            )
        if request.load.api == "embeddings" and metric == "output_throughput":
            raise InputError(f"embeddings have no output tokens, for {option}")

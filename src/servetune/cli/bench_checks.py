"""Options of `servetune bench` that contradict one another, found before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servetune.errors import InputError, UnknownName
from servetune.metrics import LATENCIES, PrecisionTarget, parse_constraints
from servetune.workload.arrival_grammar import parse_arrivals
from servetune.workload.arrivals import AllAtOnce, Arrivals, Constant, Poisson

__all__ = ["arrivals_said", "require_agreement"]

Said = Mapping[str, Any]

#: Option, what it speaks about, and how that is said: one of these must be there.
_NEEDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("turn_tokens", ("turns",), "--turns 4 asks conversations"),
    ("prefixes", ("shared_prefix",), "--shared-prefix 512 makes prompts begin alike"),
    ("time_scale", ("trace",), "without a trace, --rate says how fast requests come"),
    ("prompt_column", ("dataset",), "--dataset names the file that has columns"),
    ("output_column", ("dataset",), "--dataset names the file that has columns"),
    ("grace_s", ("duration_s", "until"), "it is what requests in flight get at such an end"),
    ("keep_saturated", ("rate", "arrivals", "trace"), "a closed loop is never saturated"),
)

#: What an option already says, and who else would say it.
_SAYS_ALL: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "trace",
        "a trace says itself what is asked and when",
        (
            "workload", "dataset", "input_tokens", "output_tokens", "turns", "turn_tokens",
            "think_s", "shared_prefix", "prefixes", "prompt_column", "output_column", "lora",
            "rate", "arrivals",
        ),
        "leave it out; --time-scale 0.5 replays the trace twice as fast",
    ),
    (
        "workload",
        "the workload says what is asked",
        (
            "dataset", "input_tokens", "output_tokens", "turns", "turn_tokens", "shared_prefix",
            "prefixes", "prompt_column", "output_column",
        ),
        "leave it out, or write a workload of your own (docs/guides/workloads.md)",
    ),
    (
        "dataset",
        "a data set has its own prompts",
        ("input_tokens", "turns", "turn_tokens", "shared_prefix", "prefixes"),
        "leave it out; --output-tokens may stay",
    ),
    (
        "stop_at_eos",
        "answers that end where the model ends them have no length of their own",
        ("min_tokens", "strict_length"),
        "leave one of them out",
    ),
)  # fmt: skip


def option_of(name: str) -> str:
    """An option as a user writes it: `--grace` of `grace_s`."""
    if name == "think_s":
        return "--think-time"
    return "--" + name.removesuffix("_s").replace("_", "-")


def require_agreement(said: Said) -> None:
    """Refuse options that speak about something that is not there, or against one another.

    Raises:
        InputError: The first such option, and what to do.
    """
    for name, needed, hint in _NEEDS:
        if _given(said, name) and not any(_given(said, other) for other in needed):
            others = " or ".join(option_of(other) for other in needed)
            raise InputError(f"{option_of(name)} has no meaning without {others}", hint=hint)
    for name, claim, rivals, hint in _SAYS_ALL:
        for other in rivals:
            if _given(said, name) and _given(said, other):
                raise InputError(
                    f"{claim}: {option_of(name)} and {option_of(other)} contradict each other",
                    hint=hint,
                )
    if said["routing"] and len(said["urls"]) < 2:
        raise InputError("--routing needs several servers", hint="name two URLs or more")
    if said["dcgm_url"] and not said["scrape_s"]:
        raise InputError("--dcgm is asked as often as --scrape-every says, which is never")
    if said["turns"] and said["api"] not in (None, "chat", "responses"):
        raise InputError(
            f"--turns asks conversations, which --api {said['api']} does not carry",
            hint="say --api chat, or leave it out",
        )
    if said["api"] == "embeddings" and said["output_tokens"]:
        raise InputError("embeddings have no output tokens", hint="leave --output-tokens out")
    _require_thinkers(said)
    _require_measured(said)


def _given(said: Said, name: str) -> bool:
    return said[name] is not None and said[name] is not False and said[name] != ()


def _require_thinkers(said: Said) -> None:
    """A user thinks between an answer and the next question; an open loop has no users."""
    if not said["think_s"] or said["turns"] or said["workload"]:
        return
    if not isinstance(arrivals_said(said), AllAtOnce):
        raise InputError(
            "--think-time is between an answer and its user's next request, and requests that "
            "come at a rate wait for no answer",
            hint="leave --rate out, or say --turns for conversations",
        )


def _require_measured(said: Said) -> None:
    """Refuse limits on what an answer in one piece cannot show."""
    why = ""
    if said["no_stream"]:
        why = "with --no-stream answers come whole"
    elif said["api"] == "embeddings":
        why = "embeddings come whole"
    limits = parse_constraints(said["constraints"] or "")
    asked = [("--constraints", limit.metric) for limit in limits]
    for limit in parse_constraints(said["slo"] or ""):
        if limit.metric not in LATENCIES:
            raise InputError(
                f"--slo judges single requests, and none has a {limit.metric}",
                hint=f"it takes {', '.join(LATENCIES)}; --constraints judges the whole run",
            )
        asked.append(("--slo", limit.metric))
    if said["until"]:
        asked.append(("--until", PrecisionTarget.parse(said["until"]).metric))
    for option, metric in asked:
        if why and metric in LATENCIES and metric != "e2e_latency":
            raise InputError(
                f"{why}, there is no {metric} for {option}", hint="e2e_latency can be measured"
            )
        if said["api"] == "embeddings" and metric == "output_throughput":
            raise InputError(f"embeddings have no output tokens, for {option}")


# when requests come


def arrivals_said(said: Said) -> Arrivals:
    """The law of `--rate` and `--arrivals` together.

    Raises:
        InputError: They do not go together, or the law cannot be read.
    """
    rate, law = said["rate"], said["arrivals"]
    if law is None:
        return AllAtOnce() if rate is None else Poisson(rate)
    if "=" in law:
        return _written_out(law, rate)
    known = ("constant", "poisson", "gamma")
    if law not in known:
        if law in _IN_FULL:
            raise InputError(
                f"{law} arrivals must be written out",
                hint=f"such as --arrivals {_IN_FULL[law]} (docs/guides/arrivals.md)",
            )
        raise UnknownName("kind of arrivals", law, (*known, *_IN_FULL))
    if rate is None:
        raise InputError(f"{law} arrivals need a rate", hint="say --rate, requests per second")
    return Constant(rate) if law == "constant" else parse_arrivals(f"kind={law},rate_per_s={rate}")


#: Laws that one rate does not describe, each as a user may begin with it.
_IN_FULL = {
    "all_at_once": "kind=all_at_once",
    "mmpp": "kind=mmpp,rates_per_s=[2,40],dwell_s=[30,5]",
    "piecewise": "kind=piecewise,steps=[(60,2),(30,8)]",
    "ramp": "kind=ramp,from_per_s=1,to_per_s=20,over_s=120",
    "sine": "kind=sine,mean_per_s=4,amplitude_per_s=2,period_s=300",
    "scheduled": "kind=scheduled,times_s=[0,0.5,2]",
}


def _written_out(law: str, rate_per_s: float | None) -> Arrivals:
    defaults = {} if rate_per_s is None else {"rate_per_s": rate_per_s}
    arrivals = parse_arrivals(law, defaults=defaults)
    if rate_per_s is not None and getattr(arrivals, "rate_per_s", None) != rate_per_s:
        raise InputError(
            f"--arrivals {law} says how often requests come, and so does --rate {rate_per_s:g}",
            hint="leave --rate out",
        )
    return arrivals

"""How near a fitted workload is: p50 and p99 of TTFT and ITL, simulated from the original and from
what `servetune workloads fit` learned of a log of it.

python benchmarks/workload/fit.py             all shapes, a table in Markdown
python benchmarks/workload/fit.py NAME ...    some of them
python benchmarks/workload/fit.py --requests 20000 --runs 2 --processes 2 --seed 1     the defaults
python benchmarks/workload/fit.py --most-runs 60 two_steps reports    runs until each cell is sure

Each shape is a workload in open loop. A sample of it is simulated, which gives the times of later
turns, and written as a log in the form named; the log is read and fitted by the functions behind
the command. The original and the fit are then simulated with other seeds, each run as long as the
log, on Qwen3-4B and one L4. Every shape has seeds of its own, so that none shares another's luck.

`fit` is the difference of the fit's runs from the original's. `self` is that of the log's own run
from the original's: what a sample of this length owes to chance, and no fit to it can be without.
Of each run, times are stretched so that conversations come at their law's mean rate: how many came
in a run is chance that would hide the rest. Beside each difference is half its interval of 95%, by
resampling 48 stretches of each run among their neighbours; the chance of the log that was fitted
is not in it, and a log of more requests (`--log-requests`) has less of it; of several logs
(`--logs`), each of which is fitted on its own, the runs of all fits are counted together. Bold
differences are surely beyond 5%, and those marked `?` neither surely beyond nor surely within.
`rank` is the percentile of the fit that the original's 99th is (TTFT, ITL): where few values lie
near it, a percentile moves far by chance, and its rank does not.
"""

import argparse
import base64
import itertools
import json
import math
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.workload.arrivals import parse_arrivals
from servetune.workload.fitting import fit_workload
from servetune.workload.lengths import SHAREGPT
from servetune.workload.presets import preset
from servetune.workload.request_log import read_log
from servetune.workload.workload import Workload, read_workload, workload_of
from servetune.workload.written import workload_text

SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
NODE = node(gpu="L4")
PLAN = Plan(model="m", prefix_caching=True)


def correlated(seed, count=20_000):
    """Heavy-tailed lengths whose answers go with their prompts (rank correlation near 0.5)."""
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal([0, 0], [[1, 0.55], [0.55, 1]], count)
    prompts = np.clip(np.exp(5.2 + 1.1 * z[:, 0]), 4, 8000).astype(int)
    answers = np.clip(np.exp(5.0 + 0.9 * z[:, 1]), 2, 2000).astype(int)
    return prompts, answers


def azure_like(seed, count=20_000):
    """Two applications in one service: code with long prompts and short answers, and chat."""
    rng = np.random.default_rng(seed)
    code = rng.random(count) < 0.35
    prompts = np.where(code, rng.lognormal(7.3, 0.6, count), rng.lognormal(6.3, 0.9, count))
    answers = np.where(code, rng.lognormal(2.8, 0.7, count), rng.lognormal(5.2, 0.5, count))
    return np.clip(prompts, 8, 7000).astype(int), np.clip(answers, 1, 1000).astype(int)


def chatbots(turn_median=200, think_median_ms=12000, output_median=160):
    """Long chats, as Mooncake's: three assistants with system prompts, and users who think."""
    parts = [
        {
            "name": f"assistant {i}",
            "weight": weight,
            "input_tokens": {
                "kind": "lognormal",
                "median": tokens + 1800,
                "sigma": 0.4,
                "min": tokens + 700,
                "max": 9000,
            },
            "output_tokens": {
                "kind": "lognormal",
                "median": output_median,
                "sigma": 0.7,
                "max": 1500,
            },
            "prefix": {"levels": [{"tokens": tokens}]},
            "sessions": {
                "turns": {"kind": "empirical", "tokens": [1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 9]},
                "turn_tokens": {
                    "kind": "lognormal",
                    "median": turn_median,
                    "sigma": 0.9,
                    "max": 2000,
                },
                "think_ms": {
                    "kind": "lognormal",
                    "median": think_median_ms,
                    "sigma": 0.8,
                    "max": 300000,
                },
            },
        }
        for i, (weight, tokens) in enumerate(((5, 512), (3, 1536), (2, 1024)))
    ]
    return workload_of({"name": "chatbots", "api": "chat", "part": parts})


def agents():
    """Unseen while the form was chosen: agents whose turns add results, many system prompts."""
    part = {
        "input_tokens": {
            "kind": "lognormal",
            "median": 1500,
            "sigma": 0.35,
            "min": 900,
            "max": 6000,
        },
        "output_tokens": {
            "kind": "quantiles",
            "points": [[0, 12], [0.6, 45], [0.9, 220], [1, 900]],
        },
        "prefix": {
            "levels": [{"tokens": 320, "branches": 2}, {"tokens": 420, "branches": 12}],
            "skew": 0.9,
        },
        "sessions": {
            "turns": {"kind": "uniform", "min": 2, "max": 8},
            "turn_tokens": {
                "kind": "quantiles",
                "points": [[0, 30], [0.5, 180], [0.95, 1200], [1, 3000]],
            },
            "think_ms": {"kind": "quantiles", "points": [[0, 80], [0.8, 900], [1, 20000]]},
        },
    }
    return workload_of({"name": "agents", "api": "chat", "part": [part]})


class Drawn:
    """Workload whose pairs of lengths come from a function of the seed."""

    def __init__(self, pairs, arrivals):
        self.pairs, self.arrivals, self.name = pairs, parse_arrivals(arrivals), pairs.__name__

    def at(self, seed, count):
        from servetune.workload.workload import TraceFile

        rng = np.random.default_rng(seed)
        prompts, answers = self.pairs(seed + 1000, count)
        due_s = itertools.islice(self.arrivals.offsets_s(rng), count)
        path = Path(tempfile.mkdtemp()) / f"{self.name}-{seed}-{count}.csv"
        rows = zip(due_s, prompts.tolist(), answers.tolist(), strict=True)
        path.write_text(
            "due_s,input_tokens,output_tokens\n" + "".join(f"{t!r},{p},{a}\n" for t, p, a in rows)
        )
        drawn = Workload(name=self.name, trace=TraceFile(path=str(path)), request_count=count)
        return at_mean_rate(drawn, self.arrivals)


class Law:
    """Workload in open loop."""

    def __init__(self, workload, arrivals):
        self.workload = msgspec.structs.replace(
            workload, arrivals=parse_arrivals(arrivals), concurrency=None, duration_s=None
        )

    def at(self, seed, count):
        drawn = msgspec.structs.replace(self.workload, seed=seed, request_count=count)
        return at_mean_rate(drawn, self.workload.arrivals)


def at_mean_rate(workload, arrivals):
    """The workload, its times stretched so that conversations come at the mean rate of the law."""
    requests = workload.requests()
    heads_s = [each.due_s for each in requests if each.follows is None]
    expected = arrivals.mean_rate_per_s(heads_s[-1]) * heads_s[-1]
    stretch = len(heads_s) / expected
    workload.__dict__["_requests"] = tuple(
        msgspec.structs.replace(each, due_s=each.due_s * stretch) for each in requests
    )
    return workload


def of_lengths(lengths, name):
    return Workload.of(lengths, name=name)


#: Name: workload, form of the log.
SHAPES = {
    "multi_turn_chat": (
        lambda: Law(preset("multi_turn_chat"), "kind=poisson,rate_per_s=0.35"),
        "openai",
    ),
    "rag_document_qa": (
        lambda: Law(preset("rag_document_qa"), "kind=poisson,rate_per_s=0.55"),
        "openai",
    ),
    "agent_tool_calling": (
        lambda: Law(preset("agent_tool_calling"), "kind=gamma,rate_per_s=1.6,burstiness=0.5"),
        "openai",
    ),
    "long_context_scaling": (
        lambda: Law(preset("long_context_scaling"), "kind=poisson,rate_per_s=0.04"),
        "sagemaker",
    ),
    "production_traffic_mix": (
        lambda: Law(preset("production_traffic_mix"), "kind=poisson,rate_per_s=0.9"),
        "openai",
    ),
    "shared_system_prompt": (
        lambda: Law(preset("shared_system_prompt"), "kind=poisson,rate_per_s=2"),
        "vllm",
    ),
    "sharegpt_bursts": (
        lambda: Law(
            of_lengths(SHAREGPT, "sharegpt"), "kind=mmpp,rates_per_s=[0.6,3],dwell_s=[40,10]"
        ),
        "servetune",
    ),
    "correlated": (lambda: Drawn(correlated, "kind=gamma,rate_per_s=1.2,burstiness=0.4"), "azure"),
    "azure_like": (
        lambda: Drawn(azure_like, "kind=sine,mean_per_s=0.7,amplitude_per_s=0.4,period_s=7200"),
        "azure",
    ),
    "chatbots": (lambda: Law(chatbots(), "kind=poisson,rate_per_s=0.12"), "mooncake"),
    "agents": (lambda: Law(agents(), "kind=gamma,rate_per_s=0.2,burstiness=0.6"), "openai"),
    "stepped": (
        lambda: Drawn(
            stepped,
            "kind=modulated,steps=[(1800,0.25),(1200,0.7),(900,0.45)],factors=[0.7,2.2],"
            "dwell_s=[60,15]",
        ),
        "burstgpt",
    ),
    # Of these, none was looked at while the speed of answers and the price of steps were chosen.
    "short_chats": (
        lambda: Law(chatbots(90, 5000, 110), "kind=poisson,rate_per_s=0.12"),
        "mooncake",
    ),
    "slow_chats": (
        lambda: Law(chatbots(320, 30000, 240), "kind=poisson,rate_per_s=0.06"),
        "mooncake",
    ),
    "three_steps": (
        lambda: Drawn(
            stepped,
            "kind=modulated,steps=[(2400,0.5),(1500,0.25),(600,0.7)],factors=[0.6,1.9],"
            "dwell_s=[40,18]",
        ),
        "burstgpt",
    ),
    "two_steps": (
        lambda: Drawn(
            stepped,
            "kind=modulated,steps=[(3600,0.2),(5400,0.45)],factors=[0.5,3],dwell_s=[80,20]",
        ),
        "burstgpt",
    ),
    # These two were left out while the laws were chosen, but for how far apart states lie.
    "tutors": (lambda: Law(tutors(), "kind=gamma,rate_per_s=0.045,burstiness=0.8"), "mooncake"),
    "reports": (
        lambda: Drawn(
            reports,
            "kind=modulated,steps=[(1500,0.3),(900,0.5),(2100,0.2),(1200,0.6)],factors=[0.6,1.8],"
            "dwell_s=[90,45]",
        ),
        "azure",
    ),
    # Named before they were first run, when finer bins and more steps had been chosen.
    "offices": (
        lambda: Drawn(
            reports,
            "kind=modulated,steps=[(5000,0.2),(2500,0.5),(3500,0.3)],factors=[0.5,1.2,2.4],"
            "dwell_s=[120,60,25]",
        ),
        "azure",
    ),
    "waves": (
        lambda: Drawn(correlated, "kind=mmpp,rates_per_s=[0.3,0.8,2.2],dwell_s=[200,80,30]"),
        "burstgpt",
    ),
}


def tutors():
    """Left out: lessons of many turns, one assistant, users who read and write for a minute."""
    part = {
        "input_tokens": {"kind": "lognormal", "median": 2600, "sigma": 0.15, "min": 2250},
        "output_tokens": "kind=quantiles,points=[(0,20),(0.5,190),(0.9,420),(1,900)]",
        "prefix": {"levels": [{"tokens": 2048}]},
        "sessions": {
            "turns": {"kind": "quantiles", "points": [[0, 2], [0.5, 6], [0.9, 14], [1, 25]]},
            "turn_tokens": {"kind": "lognormal", "median": 70, "sigma": 0.8, "max": 900},
            "think_ms": {"kind": "lognormal", "median": 40000, "sigma": 1.0, "max": 900000},
        },
    }  # fmt: skip
    return workload_of({"name": "tutors", "api": "chat", "part": [part]})


def reports(seed, count=20_000):
    """Left out: mails, contracts and tables, with answers that go with the prompts' lengths."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, count, p=[0.55, 0.3, 0.15])
    prompts = np.exp(np.array([5.6, 7.2, 8.1])[kind] + 0.45 * rng.normal(size=count))
    answers = 15 + rng.gamma(2.0, np.array([60, 90, 25])[kind] * (0.6 + prompts / 4000))
    return np.clip(prompts, 20, 8000).astype(int), np.clip(answers, 1, 1500).astype(int)


def stepped(seed, count=20_000):
    """Unseen while the form was chosen: short questions, and long documents with long answers."""
    rng = np.random.default_rng(seed)
    prompts = np.where(
        rng.random(count) < 0.7, rng.gamma(2.0, 60, count), rng.gamma(6.0, 400, count)
    )
    answers = 20 + rng.gamma(1.5, 40 + prompts / 25)
    return np.clip(prompts, 3, 9000).astype(int), np.clip(answers, 1, 1800).astype(int)


# Logs


_texts = {}


def words(content_id, tokens):
    """Text of a content: of tokens of four characters, equal for equal contents."""
    if (content_id, tokens) not in _texts:
        rng = np.random.default_rng((77, content_id))
        letters = rng.integers(97, 123, (tokens, 4), dtype=np.uint8)
        letters[:, 3] = ord(" ")
        text = letters.tobytes().decode()
        if len(_texts) > 2000:
            _texts.clear()
        _texts[content_id, tokens] = text
    return _texts[content_id, tokens]


def text_of(request):
    """Words of a prompt: its known pieces, then words of its own."""
    pieces = [words(i, n) for i, n in request.prefix]
    own = request.input_tokens - request.prefix_tokens
    return "".join([*pieces, words(10_000_000 + request.index, own)])


def messages_of(request, history):
    """Messages of a request, those of the turns before it first."""
    if request.follows is None:
        return [{"role": "user", "content": text_of(request)}]
    before = history[request.follows]
    answer_id, answer_tokens = request.prefix[-2]
    new = words(*request.prefix[-1])
    return [*before, {"role": "assistant", "content": words(answer_id, answer_tokens)},
            {"role": "user", "content": new}]  # fmt: skip


START = 1_750_000_000.0


def iso(seconds, digits=6):
    moment = datetime.fromtimestamp(START + seconds, UTC)
    return moment.isoformat(timespec="microseconds" if digits else "seconds").replace("+00:00", "Z")


def write_log(path, form, requests, records):
    """A log of simulated requests in one of the forms, in order of arrival."""
    order = sorted(range(len(requests)), key=lambda i: records[i].due_s)
    history = {}
    with path.open("w") as out:
        if form == "azure":
            out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        if form == "burstgpt":
            out.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        if form == "servetune":
            out.write("due_s,input_tokens,output_tokens\n")
        for i in order:
            request, record = requests[i], records[i]
            due_s, prompt, answer = record.due_s, request.input_tokens, request.output_tokens
            if form == "azure":
                at = iso(due_s).replace("T", " ").rstrip("Z")
                out.write(f"{at}0,{prompt},{answer}\n")
            elif form == "servetune":
                out.write(f"{due_s:.6f},{prompt},{answer}\n")
            elif form == "burstgpt":
                out.write(f"{due_s:.3f},ChatGPT,{prompt},{answer},{prompt + answer},API log\n")
            elif form == "mooncake":
                row = {"timestamp": round(due_s * 1000), "input_length": prompt,
                       "output_length": answer, "hash_ids": blocks_of(request)}  # fmt: skip
                out.write(json.dumps(row) + "\n")
            elif form == "openai":
                history[i] = messages_of(request, history)
                row = {
                    "timestamp": iso(due_s), "end_time": iso(record.end_s),
                    "request": {"model": "m", "messages": history[i], "stream": True},
                    "usage": {"prompt_tokens": prompt, "completion_tokens": answer},
                }  # fmt: skip
                out.write(json.dumps(row) + "\n")
            elif form == "sagemaker":
                sent = json.dumps(
                    {"inputs": text_of(request), "parameters": {"max_new_tokens": answer}}
                )
                got = json.dumps({"usage": {"prompt_tokens": prompt, "completion_tokens": answer}})
                row = {
                    "captureData": {
                        "endpointInput": {
                            "data": base64.b64encode(sent.encode()).decode(),
                            "encoding": "BASE64",
                            "mode": "INPUT",
                        },
                        "endpointOutput": {"data": got, "encoding": "JSON", "mode": "OUTPUT"},
                    },
                    "eventMetadata": {"eventId": str(i), "inferenceTime": iso(due_s, 0)},
                }
                out.write(json.dumps(row) + "\n")
            elif form == "vllm":
                at = iso(due_s, 0)
                clock = f"{at[5:10]} {at[11:19]}"
                out.write(
                    f"INFO {clock} logger.py:39] Received request cmpl-{i}: "
                    f"prompt: {text_of(request)!r}, "
                    f"params: SamplingParams(n=1, temperature=0.0, max_tokens={answer}), "
                    "prompt_token_ids: None, lora_request: None, prompt_adapter_request: None.\n"
                )


_names = {}


def blocks_of(request):
    """Mooncake's hash_ids: a number for each block of 512 tokens and all before it."""
    pieces = [*request.prefix]
    own = request.input_tokens - request.prefix_tokens
    if own:
        pieces.append((10_000_000 + request.index, own))
    found, before = [], ()
    left, at = list(pieces), 0
    for _ in range(math.ceil(request.input_tokens / 512)):
        need, block = 512, []
        while need and left:
            content, tokens = left[0]
            take = min(need, tokens - at)
            block.append((content, at, take))
            need -= take
            at += take
            if at == tokens:
                left.pop(0)
                at = 0
        before = hash((before, tuple(block)))
        found.append(_names.setdefault(before, len(_names)))
    return found


# Comparison


#: Stretches of a run; neighbours among which they are resampled, and how often.
BLOCKS, NEIGHBOURS, RESAMPLES = 48, 4, 200
#: Logarithms of seconds in bins of 0.2%.
EDGES = np.arange(math.log(1e-4), math.log(1e4), 0.002)


def histograms(workload):
    """Counts of TTFT and of ITL, of shape (stretches, 2, bins), and the run."""
    run = simulate(PLAN, SHAPE, NODE, workload)
    last_s = max(each.due_s for each in workload.requests())
    counts = np.zeros((BLOCKS, 2, len(EDGES) - 1), dtype=np.float32)
    records = [[] for _ in range(BLOCKS)]
    for record in run.records:
        if record.chunk_times_s:
            records[min(BLOCKS - 1, int(record.due_s / last_s * BLOCKS))].append(record)
    for block, chosen in enumerate(records):
        ttft = [each.chunk_times_s[0] - each.due_s for each in chosen]
        gaps = [np.diff(each.chunk_times_s) for each in chosen]
        for which, times_s in enumerate((ttft, np.concatenate(gaps or [np.zeros(0)]))):
            counts[block, which] = np.histogram(np.log(np.maximum(times_s, 1e-4)), EDGES)[0]
    return counts, run


def percentiles(counts):
    """Median and 99th percentile of TTFT and of ITL in seconds, of shape (..., 4)."""
    total = counts.cumsum(axis=-1, dtype=np.float64)
    found = [np.exp(EDGES[(total < share * total[..., -1:]).sum(axis=-1)]) for share in (0.5, 0.99)]
    return np.stack(found, axis=-1).reshape(*counts.shape[:-2], 4)


def ranks(counts, own):
    """Shares of TTFT and of ITL up to the 99th percentile of the original."""
    at = np.searchsorted(np.exp(EDGES), percentiles(own)[1::2])
    return [row[:end].sum() / row.sum() for row, end in zip(counts, at, strict=True)]


def resampled(counts, rng):
    """Counts of runs made of the run's stretches, each from a place near its own."""
    groups = counts.reshape(-1, NEIGHBOURS, *counts.shape[1:])
    drawn = []
    for _ in range(RESAMPLES):
        weights = rng.multinomial(NEIGHBOURS, [1 / NEIGHBOURS] * NEIGHBOURS, len(groups))
        drawn.append(np.einsum("gn,gnkb->kb", weights.astype(np.float32), groups))
    return np.array(drawn, dtype=np.float64)


class Runs:
    """Runs of one workload: counts of all together, as they came and resampled."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.counts = self.drawn = 0

    def add(self, workload):
        """Simulate one more run; the run."""
        counts, run = histograms(workload)
        self.counts = self.counts + counts.sum(axis=0, dtype=np.float64)
        self.drawn = self.drawn + resampled(counts, self.rng)
        return run

    def beside(self, own):
        """Relative differences of the percentiles, and halves of their intervals of 95%."""
        spread = (percentiles(self.drawn) / percentiles(own.drawn)).std(axis=0)
        # A group of n resampled has (n - 1) / n of its variance.
        half = 1.96 * spread * math.sqrt(NEIGHBOURS / (NEIGHBOURS - 1))
        return percentiles(self.counts) / percentiles(own.counts) - 1, half


def unsure(value, half):
    """Whether a difference is neither surely within 5% nor surely beyond."""
    return abs(abs(value) - 0.05) < half


def compare(name, options):
    make, form = SHAPES[name]
    count, keep = options.requests, options.keep
    seed = 1000 * options.seed + 10 * list(SHAPES).index(name)
    original = make()
    start = time.process_time()
    of_log, own, of_fit = Runs(seed), Runs(seed + 1), Runs(seed + 2)
    folder = Path(keep or tempfile.mkdtemp())
    fits, fit_s = [], 0.0
    for one in range(seed, seed + 50_000_000 * options.logs, 50_000_000):
        logged = original.at(one, options.log_requests or count)
        run = of_log.add(logged)
        path = folder / f"{name}.{form}.log"
        write_log(path, form, logged.requests(), run.records)
        began_s = time.process_time()
        log = read_log(path)
        assert log.form == form, (log.form, form)
        assert not log.unreadable, log.examples
        fitted = fit_workload(log, name=name)
        file = folder / f"{name}.toml"
        file.write_text(workload_text(fitted.workload, fitted.found))
        fit_s += (time.process_time() - began_s) / options.logs
        fits.append(read_workload(file))
    if not keep:
        path.unlink()
    done = 0
    runs = max(options.runs, options.logs)
    while done < runs or (done < options.most_runs and unsure(*of_fit.beside(own)).any()):
        one = seed + 1 + done % 2 + 100_000 * (done // 2)
        own.add(original.at(one, count))
        fit = fits[done % options.logs]
        again = msgspec.structs.replace(fit, seed=one + 2, request_count=count)
        of_fit.add(at_mean_rate(again, fit.arrivals))
        done += 1
        if done % 8 == 0:
            print(
                f"{name}: {done} runs, {written(of_fit.beside(own))}", file=sys.stderr, flush=True
            )
    return {
        "name": name, "form": form, "own": percentiles(own.counts), "runs": done,
        "self": of_log.beside(own), "fit": of_fit.beside(own),
        "ranks": ranks(of_fit.counts, own.counts),
        "fit_s": fit_s, "all_s": time.process_time() - start, "kb": file.stat().st_size / 1000,
        "saturated": run.saturated, "cached": run.cached_fraction, "found": fitted.found,
    }  # fmt: skip


def written(differences):
    """Differences with halves of their intervals; bold surely beyond 5%, `?` not sure."""
    texts = []
    for value, half in zip(*differences, strict=True):
        text = f"{value * 100:+.1f} ± {half * 100:.1f}"
        doubt = "?" if unsure(value, half) else ""
        texts.append(f"**{text}**" if abs(value) - half > 0.05 else text + doubt)
    return ", ".join(texts)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("names", nargs="*")
    options.add_argument("--requests", type=int, default=20_000, help="requests of each run")
    options.add_argument("--runs", type=int, default=2, help="of the original, and of the fit")
    options.add_argument(
        "--most-runs", type=int, default=0, help="of each, until every difference is sure"
    )
    options.add_argument("--log-requests", type=int, help="requests of the log, if other")
    options.add_argument(
        "--logs", type=int, default=1, help="logs that are fitted, each on its own"
    )
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep")
    chosen = options.parse_args()
    print(
        "| shape | log | runs | TTFT p50 / p99 ms | ITL p50 / p99 ms | fit % | self % | rank "
        "| kB | s |\n"
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    names = chosen.names or list(SHAPES)
    differences = []
    with ProcessPoolExecutor(chosen.processes) as pool:
        for row in pool.map(compare, names, [chosen] * len(names)):
            ms = row["own"] * 1000
            rank = ", ".join(f"{each * 100:.2f}" for each in row["ranks"])
            print(
                f"| {row['name']} | {row['form']} | {row['runs']} | {ms[0]:.0f} / {ms[1]:.0f} "
                f"| {ms[2]:.1f} / {ms[3]:.1f} | {written(row['fit'])} | {written(row['self'])} "
                f"| {rank} | {row['kb']:.0f} | {row['fit_s']:.1f} |",
                flush=True,
            )
            print(
                f"{row['name']}: {row['all_s']:.0f} s, cached {row['cached']}, saturated "
                f"{row['saturated']}; {'; '.join(row['found'])}",
                file=sys.stderr,
                flush=True,
            )
            differences.append((*row["fit"], row["self"][0]))
    value, half, own = np.array(differences).transpose(1, 0, 2)
    print(
        f"\n{value.size} differences: {(abs(value) <= 0.05).sum()} within 5% "
        f"({(abs(own) <= 0.05).sum()} of the original's from itself), "
        f"{(abs(value) + half <= 0.05).sum()} surely, {(abs(value) - half > 0.05).sum()} surely "
        "beyond"
    )


if __name__ == "__main__":
    main()

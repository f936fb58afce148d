"""Configuration of a run of inference-perf, and notes on its keys that change nothing.

Releases up to 0.6.1 ignore keys that they do not know (pull request 667 ended it), and every
release ignores some that it does know. Read from `config.py`, `config/` and `main.py` of 0.2.0 to
0.7.0 and the sources after them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from servetune.decoding import ready
from servetune.errors import StoreError
from servetune.json_value import JsonObject


class Load(msgspec.Struct):
    """How requests are sent."""

    type: str | None = "constant"
    stages: list[JsonObject] | None = None
    sweep: JsonObject | None = None
    num_workers: int | None = None
    worker_max_concurrency: int | None = None


class Data(msgspec.Struct):
    """What is asked."""

    type: str | None = "mock"
    input_distribution: Any = None
    output_distribution: Any = None
    shared_prefix: JsonObject | None = None


class Server(msgspec.Struct):
    """What is asked for an answer; its type is the name of an engine."""

    type: str | None = None
    model_name: str | None = None


class Tokenizer(msgspec.Struct):
    """Tokenizer, whose name stands for the model's where that is not given."""

    pretrained_model_name_or_path: str | None = None


class Config(msgspec.Struct):
    """Configuration of a run; without its file, one of which nothing is known."""

    load: Load = msgspec.field(default_factory=Load)
    data: Data = msgspec.field(default_factory=Data)
    server: Server | None = None
    tokenizer: Tokenizer | None = None

    @property
    def concurrent(self) -> bool:
        """Whether users send when they are answered."""
        return self.load.type == "concurrent"

    @property
    def stages(self) -> list[JsonObject]:
        """Stages as they were configured; none of a sweep, which makes its own."""
        return [] if self.load.sweep else self.load.stages or []

    @property
    def most_in_flight(self) -> int | None:
        """Most requests that the workers of a rate have in flight."""
        return (self.load.num_workers or 0) * (self.load.worker_max_concurrency or 0) or None

    @property
    def model(self) -> str | None:
        """Name of the model."""
        named = self.server.model_name if self.server else None
        return named or (self.tokenizer.pretrained_model_name_or_path if self.tokenizer else None)

    def repeated(self, requests: int) -> JsonObject:
        """Client arguments of prompts that begin alike, or are asked again and again.

        A run of more requests than prompts asks them in turn (`shared_prefix_datagen.py`): the
        words that two prompts share then matter less than those that a prompt shares with itself.

        Args:
            requests: Number of requests that are sent.
        """
        shared = self._shared_prefix
        if not shared or shared.get("enable_multi_turn_chat"):
            return {}
        groups, each = (_count(shared, names) for names in _GROUPS)
        if requests > groups * each:
            return {"distinct_prompts": groups * each}
        tokens = shared.get("system_prompt_len", 100)
        if isinstance(tokens, dict):
            tokens = tokens.get("mean", 512)
        if not isinstance(tokens, int | float) or tokens < 1:
            return {}
        return {"shared_prefix": round(tokens), "prefixes": groups}

    @property
    def _shared_prefix(self) -> JsonObject | None:
        return self.data.shared_prefix if self.data.type == "shared_prefix" else None

    def notes(self, raw: JsonObject) -> Iterator[str]:
        """Notes on keys of the file that are not what was sent.

        Args:
            raw: The file, of which `self` has the known keys.
        """
        unknown = list(_unknown_keys(raw))
        if unknown:
            yield (
                f"note: inference-perf has no key {', '.join(unknown)}; its releases up to 0.6.1 "
                "ignore such a key without a message, and what it should set keeps its default; "
                "lengths are taken as they were measured"
            )
        default = [f"data.{each}.std_dev" for each in _DISTRIBUTIONS if self._spread_by_none(each)]
        if default:
            yield (
                f"note: {' and '.join(default)} = 200 is the default of inference-perf, whose "
                "releases up to 0.6.1 drop a key std without a message and do not show it in their "
                "config.yaml; lengths are taken as they were measured"
            )
        idle = list(self._idle_keys())
        if idle:
            yield f"note: inference-perf ignores in such a run: {'; '.join(idle)}"
        shared = self._shared_prefix or {}
        if shared.get("enable_multi_turn_chat"):
            yield (
                "note: enable_multi_turn_chat lets prompts grow from turn to turn; they are taken "
                "as prompts of the measured lengths that share nothing"
            )
        renamed = [names[0] for names in _GROUPS if names[0] in shared]
        if renamed and "circuit_breakers" not in raw:  # which inference-perf's own file has
            yield (
                f"note: {' and '.join(renamed)} are ignored by inference-perf up to 0.3.0, which "
                "reads num_groups and num_prompts_per_group, 10 each by default; they are taken as "
                "they stand"
            )

    def _spread_by_none(self, name: str) -> bool:
        """Whether lengths have the deviation that inference-perf takes where none is given."""
        law = getattr(self.data, name)
        drawn = self.data.type in _DRAWN and isinstance(law, dict) and law.get("type") != "fixed"
        return drawn and law.get("std_dev") == _DEFAULT_SPREAD

    def _idle_keys(self) -> Iterator[str]:
        """Keys that inference-perf has and does not read in such a run, with the reason."""
        load, data = self.load, self.data
        if load.sweep and load.stages:
            yield "load.stages (a sweep makes stages of its own)"
        if self.concurrent and load.worker_max_concurrency:
            yield "load.worker_max_concurrency (concurrency_level decides in concurrent stages)"
        if self.concurrent and any(_paced(stage) for stage in self.stages):
            yield "rate and duration of concurrent stages (users send when they are answered)"
        for name in _DISTRIBUTIONS:
            if getattr(data, name) and data.type not in _DRAWN:
                yield f"data.{name} (data.type {data.type} has lengths of its own)"
        if data.shared_prefix and data.type != "shared_prefix":
            yield f"data.shared_prefix (data.type is {data.type})"


def read_config(path: Path) -> tuple[Config, list[str]]:
    """Configuration beside a report, and notes on it; of nothing where there is no file.

    Raises:
        StoreError: The file is broken, or PyYAML is not installed.
    """
    if not path.is_file():
        return Config(), []
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise StoreError(
            f"reading {path} needs PyYAML", hint="pip install 'servetune[yaml]'"
        ) from None
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
        config = msgspec.convert(raw, ready(Config))
    except (OSError, ValueError, yaml.YAMLError) as error:  # msgspec's are ValueErrors
        reason = " ".join(str(error).replace("`", "").split())
        raise StoreError(
            f"{path} is no configuration of inference-perf: {reason}",
            hint="give the folder of the report as inference-perf wrote it, or take that file away "
            "and name the model with --model",
        ) from None
    return config, list(config.notes(raw))


#: Names of the numbers of shared prefixes and of prompts with each, and those of earlier releases.
_GROUPS = (
    ("num_unique_system_prompts", "num_groups"),
    ("num_users_per_system_prompt", "num_prompts_per_group"),
)
#: Data whose lengths follow `data.*_distribution`, and the deviation where none is given.
_DRAWN, _DEFAULT_SPREAD = ("random", "synthetic"), 200
_DISTRIBUTIONS = ("input_distribution", "output_distribution")

#: Keys of all releases, where a wrong one changes what is sent.
_LOAD_KEYS = frozenset(Load.__struct_fields__) | {
    "interval", "worker_max_tcp_connections", "trace", "circuit_breakers", "request_timeout",
    "request_retries", "request_retry_backoff_sec", "stage_teardown_grace_seconds",
    "lora_traffic_split", "base_seed",
}  # fmt: skip
_STAGE_KEYS = {
    "rate", "duration", "num_requests", "concurrency_level", "concurrent_sessions", "session_rate",
    "num_sessions", "timeout", "max_stage_duration", "stop_condition", "request_interval",
}  # fmt: skip
_LENGTH_KEYS = {"min", "max", "mean", "std_dev", "total_count", "type", "variance", "skew"}
_PREFIX_KEYS = {
    "num_groups", "num_prompts_per_group", "num_unique_system_prompts",
    "num_users_per_system_prompt", "system_prompt_len", "question_len", "output_len", "seed",
    "question_distribution", "output_distribution", "enable_multi_turn_chat", "multimodal",
    "max_model_len",
}  # fmt: skip

#: Keys that documents of inference-perf or of llm-d had, with what is read instead (pull requests
#: 335 of inference-perf and 890 of llm-d, 2026).
_READ_INSTEAD = {"std": "std_dev, 200 by default"}


def _unknown_keys(raw: JsonObject) -> Iterator[str]:
    """Keys that inference-perf does not have, by their place."""
    load, data = raw.get("load") or {}, raw.get("data") or {}
    places = {
        "load": (load, _LOAD_KEYS),
        **{f"load.stages[{n}]": (s, _STAGE_KEYS) for n, s in enumerate(load.get("stages") or [])},
        **{f"data.{name}": (data.get(name), _LENGTH_KEYS) for name in _DISTRIBUTIONS},
        "data.shared_prefix": (data.get("shared_prefix"), _PREFIX_KEYS),
    }
    for place, (members, known) in places.items():
        for name in members if isinstance(members, dict) else ():
            if name not in known:
                instead = f" (read is {_READ_INSTEAD[name]})" if name in _READ_INSTEAD else ""
                yield f"{place}.{name}{instead}"


def _paced(stage: JsonObject) -> bool:
    """Whether a rate was given; inference-perf itself writes num_requests there."""
    return stage.get("rate") not in (None, stage.get("num_requests"))


def _count(shared: JsonObject, names: Sequence[str]) -> int:
    """Number under the first of these names; 10 is the default of all of them."""
    found = next((shared[name] for name in names if shared.get(name)), 10)
    return found if isinstance(found, int) else 10

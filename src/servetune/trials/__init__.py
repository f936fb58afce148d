"""One point of a search from start to record: simulated or measured."""

from servetune.trials.benched import Bench, Benched, bench
from servetune.trials.budget import Budget, parse_duration_s
from servetune.trials.launch import Launch, default_ready_timeout_s
from servetune.trials.preflight import require_idle_gpus, require_launch, require_server
from servetune.trials.simulated import simulated_again, simulated_with_requests
from servetune.trials.sweep import (
    ExecutionPolicy,
    commands_of,
    problems_of,
    require_one_that_fits,
    run_trials,
)
from servetune.trials.trial import SMALLEST_VOCAB, StudyContext, Trial, trials_of, with_fields

__all__ = [
    "SMALLEST_VOCAB",
    "Bench",
    "Benched",
    "Budget",
    "ExecutionPolicy",
    "Launch",
    "StudyContext",
    "Trial",
    "bench",
    "commands_of",
    "default_ready_timeout_s",
    "parse_duration_s",
    "problems_of",
    "require_idle_gpus",
    "require_launch",
    "require_one_that_fits",
    "require_server",
    "run_trials",
    "simulated_again",
    "simulated_with_requests",
    "trials_of",
    "with_fields",
]

"""One point of a search from start to record: simulated or measured."""

from servetune.trials.asked import AskedTrials, TrialSearch
from servetune.trials.benched import Bench, Benched, bench
from servetune.trials.budget import Budget, parse_duration_s
from servetune.trials.found_load import FoundLoad, LoadKnob
from servetune.trials.largest_load import LargestLoads
from servetune.trials.launch import Launch, default_ready_timeout_s
from servetune.trials.margins import worsened_by_load
from servetune.trials.measured import TrialEvents
from servetune.trials.policy import ExecutionPolicy
from servetune.trials.preflight import require_idle_gpus, require_launch, require_server
from servetune.trials.server_life import ServerEvents, ServerLife
from servetune.trials.simulated import simulated_again, simulated_with_requests
from servetune.trials.sweep import (
    commands_of,
    problems_of,
    require_one_that_fits,
    run_asked_trials,
    run_trials,
    unable_keys,
)
from servetune.trials.trial import SMALLEST_VOCAB, StudyContext, Trial, trials_of, with_fields
from servetune.trials.trial_requests import TrialRequests, measured_requests, simulated_requests
from servetune.trials.watch import RunWatch

__all__ = [
    "SMALLEST_VOCAB",
    "AskedTrials",
    "Bench",
    "Benched",
    "Budget",
    "ExecutionPolicy",
    "FoundLoad",
    "LargestLoads",
    "Launch",
    "LoadKnob",
    "RunWatch",
    "ServerEvents",
    "ServerLife",
    "StudyContext",
    "Trial",
    "TrialEvents",
    "TrialRequests",
    "TrialSearch",
    "bench",
    "commands_of",
    "default_ready_timeout_s",
    "measured_requests",
    "parse_duration_s",
    "problems_of",
    "require_idle_gpus",
    "require_launch",
    "require_one_that_fits",
    "require_server",
    "run_asked_trials",
    "run_trials",
    "simulated_again",
    "simulated_requests",
    "simulated_with_requests",
    "trials_of",
    "unable_keys",
    "with_fields",
    "worsened_by_load",
]

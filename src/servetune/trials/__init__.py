"""One point of a search from start to record: simulated or measured."""

from servetune.trials.benched import Bench, Benched, bench
from servetune.trials.budget import Budget, parse_duration_s
from servetune.trials.launch import Launch, default_ready_timeout_s
from servetune.trials.played import played, played_again
from servetune.trials.preflight import require_idle_gpus, require_launch, require_server
from servetune.trials.prompting import model_tokenizer, observed_of, trace_of, traced_prompts
from servetune.trials.sweep import ExecutionPolicy, commands_of, require_one_that_fits, run_trials
from servetune.trials.trial import StudyContext, Trial, trials_of, with_fields

__all__ = [
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
    "model_tokenizer",
    "observed_of",
    "parse_duration_s",
    "played",
    "played_again",
    "require_idle_gpus",
    "require_launch",
    "require_one_that_fits",
    "require_server",
    "run_trials",
    "trace_of",
    "traced_prompts",
    "trials_of",
    "with_fields",
]

"""One point of a search from start to record: simulated or measured."""

from servetune.trials.measured import Launch, user_command
from servetune.trials.played import played, played_again
from servetune.trials.prompting import observed_of
from servetune.trials.sweep import commands_of, require_one_that_fits, run_trials
from servetune.trials.trial import Run, Trial, trials_of, with_fields

__all__ = [
    "Launch",
    "Run",
    "Trial",
    "commands_of",
    "observed_of",
    "played",
    "played_again",
    "require_one_that_fits",
    "run_trials",
    "trials_of",
    "user_command",
    "with_fields",
]

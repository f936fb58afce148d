"""`servetune report`: summary and dashboard from a journal alone."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.outcome import print_outcome
from servetune.cli.output import echo


@verb(api.Report, chart=True)
def report(request: api.Report, *, chart: bool) -> int:
    """Make summary and dashboard from journals (.jsonl), summaries, records (.json) or folders.

    Journals and summaries of llm-optimizer are read, too. The timelines of a single trial are
    kept, or made of the requests beside its journal.
    """
    made = api.write_report(request)
    print_outcome(
        made.artifacts,
        made.trials.records,
        made.trials.constraints,
        chosen=made.trials.picks(),
        compared=made.compared,
        journal=request.sources[0],
        chart=chart,
    )
    for path in made.exports:
        echo(f"{'export':<10} {path}")
    if made.trials.search:
        print(made.trials.search)
    return 0

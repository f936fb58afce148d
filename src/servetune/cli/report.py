"""`servetune report`: summary and dashboard from a journal alone."""

from __future__ import annotations

import click

from servetune import api
from servetune.cli.derive import verb
from servetune.cli.outcome import print_outcome
from servetune.cli.output import echo
from servetune.cli.serve_simulated import Servable


class Report(Servable):
    """A command that `--serve` turns into `ui`."""

    text = "HTTP server of the pages, in place of the files; see ui --help."

    def served(self) -> click.Command:
        """The command `ui`."""
        from servetune.cli.ui import ui

        return ui


@verb(api.Report, command=Report, chart=True)
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

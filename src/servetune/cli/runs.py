"""`servetune runs`: results of finished runs, exported and queried."""

from __future__ import annotations

import click

from servetune.cli.runs_export import export
from servetune.cli.runs_sql import sql


@click.group()
def runs() -> None:
    """Export results of finished runs, and query them."""


runs.add_command(export)
runs.add_command(sql)

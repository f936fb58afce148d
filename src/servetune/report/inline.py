"""HTML of results within another page, such as a notebook: tables, and the dashboard in a frame.

Where frames and scripts are taken out, as where GitHub shows a notebook, the tables remain.
The frame holds the whole dashboard and needs neither a server nor a network. It has an origin of
its own, so that nothing in it reaches the notebook around it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from servetune.report.digest import Digest
from servetune.report.quantities import DASH
from servetune.visible import visible

#: Height of the frame in pixels; the dashboard scrolls in it.
HEIGHT_PX = 640
#: Largest dashboard that a frame holds; a notebook saves it with each result.
MOST_BYTES = 3_000_000
#: Longest text of a cell in a table of raw values.
_LONGEST_CELL = 80

#: Classes that keep formulas out: a notebook would set what is between two dollar signs.
_ROOT = '<div class="servetune tex2jax_ignore mathjax_ignore" style="overflow-x:auto">'


def digest_html(digest: Digest, page: str = "") -> str:
    """Digest as tables that fold, then the dashboard of `page` in a frame.

    Args:
        digest: The run.
        page: Dashboard as a whole page; none is shown where it is empty or too large.
    """
    parts = [f"<p><strong>{escaped(digest.heading)}</strong></p>"]
    if digest.notice:
        parts.append(f"<p>{escaped(digest.notice)}</p>")
    parts.append(_facts(digest.facts))
    picks = [pick for pick in digest.picks if pick.label]
    if picks:
        heads = ("pick", "configuration", *digest.columns, "how sure")
        rows = ((each.title, each.label, *each.values, each.doubt or DASH) for each in picks)
        parts.append(_table(heads, rows))
        command = f"<pre>{escaped(picks[0].cmd)}</pre>" if picks[0].cmd else ""
        parts.append(_folded(f"Why {picks[0].label}", _list(picks[0].reasons) + command))
    if digest.search:
        parts.append(_folded("What was found, and how sure it is", _list(digest.search)))
    if digest.failures:
        failed = _table(("configuration", "why"), digest.failures)
        parts.append(_folded("Failed trials", failed))
    if digest.trials:
        count = f"{len(digest.trials)} of {digest.trial_count:,} trials, the best first"
        table = _table(("configuration", *digest.columns, "standing"), digest.trials)
        parts.append(_folded(count, table))
    if len(page) > MOST_BYTES:
        parts.append("<p>The page is too large for a notebook: write_report makes it a file.</p>")
        page = ""
    return f"{_ROOT}{''.join(parts)}</div>{frame_html(page) if page else ''}"


def table_html(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    facts: Sequence[tuple[str, str]] = (),
    note: str = "",
    page: str = "",
) -> str:
    """Table of raw values, with facts before it, a note below, and a page in a frame.

    Args:
        heads: Headings.
        rows: Values; numbers are rounded to four digits.
        facts: Titles and values of what stands before the table.
        note: Sentence below the table.
        page: Whole page that is shown in a frame; none where it is empty.
    """
    table = _table(heads, ([_cell(value) for value in row] for row in rows))
    below = f"<p>{escaped(note)}</p>" if note else ""
    return f"{_ROOT}{_facts(facts)}{table}{below}</div>{frame_html(page) if page else ''}"


def text_html(text: str) -> str:
    """Text as it is, such as a script."""
    return f"{_ROOT}<pre>{escaped(text)}</pre></div>"


def frame_html(page: str) -> str:
    """A whole page in a frame of bounded height, without an address."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" '
        f'allow="clipboard-write" loading="lazy" title="servetune report" '
        f'style="width:100%;height:{HEIGHT_PX}px;border:1px solid #8884"></iframe>'
    )


def escaped(text: str) -> str:
    """Text that HTML shows as it is, in an element or an attribute."""
    return html.escape(visible(text))


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return (
        f"<table><thead>{_row('th', heads)}</thead>"
        f"<tbody>{''.join(_row('td', row) for row in rows)}</tbody></table>"
    )


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    rows = (
        f"<tr><th>{escaped(title)}</th><td>{escaped(value)}</td></tr>" for title, value in facts
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escaped(summary)}</summary>{content}</details>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escaped(line)}</li>' for line in lines)}</ul>" if lines else ""


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escaped(cell)}</{tag}>' for cell in cells)}</tr>"

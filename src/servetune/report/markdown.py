"""Summary of a run in Markdown, for a pull request, an issue or a wiki.

Texts from outside (names, settings, reasons) are escaped, so that they cannot become markup, a
mention or a link; commands stand in fences longer than any in them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from servetune.report.digest import Digest, PickDigest
from servetune.visible import visible

#: Characters that Markdown or HTML may read as markup, which a backslash makes themselves; an
#: underscore within a word is none, nor are the others at the beginning of a text a list.
_MARKUP = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)|^[-+=#]|(?<=^\d)[.)](?=\s)")
#: Texts that GitHub makes a link or a mention by themselves; an empty comment keeps them apart.
_LINKED = re.compile(r"@(?=\w)|#(?=\d)|:(?=//)|(?<=www)\.")


def digest_markdown(digest: Digest, *, source: str = "") -> str:
    """Digest as GitHub's Markdown, with a final newline.

    Args:
        digest: The run.
        source: File that the run was read from, for the commands that ship its pick.
    """
    return "\n".join(_lines(digest, source)) + "\n"


def _lines(digest: Digest, source: str) -> Iterator[str]:
    yield f"# {escaped(digest.heading)}"
    if digest.notice:
        yield from ("", f"> **{escaped(digest.notice)}**")
    if digest.facts:
        yield from ("", *table_lines(("", ""), digest.facts))
    picks = [pick for pick in digest.picks if pick.label]
    if picks:
        yield from _picks(picks, digest.columns)
    if digest.search:
        yield from ("", "## The search", "", *(f"- {escaped(line)}" for line in digest.search))
    if digest.trials:
        listed = len(digest.trials)
        of = f"The best {listed} of {digest.trial_count:,} trials"
        yield from ("", f"## {of if listed < digest.trial_count else 'Trials in order of merit'}")
        yield from ("", *table_lines(("configuration", *digest.columns, "standing"), digest.trials))
    if digest.failures:
        yield from (
            "",
            "## Failed trials",
            "",
            *table_lines(("configuration", "why"), digest.failures),
        )
    if picks and source:
        yield from _deploy(source)


def _picks(picks: Sequence[PickDigest], columns: Sequence[str]) -> Iterator[str]:
    rows = [(each.title, each.label, *each.values, each.doubt or "–") for each in picks]
    yield from ("", "## Picks")
    yield from ("", *table_lines(("pick", "configuration", *columns, "how sure"), rows))
    first, *others = picks
    yield from ("", f"**Why {escaped(first.label)}**", "")
    yield from (f"- {escaped(reason)}" for reason in first.reasons)
    if first.cmd:
        yield from ("", *_fenced(first.cmd))
    if others:
        yield from ("", "<details><summary>Reasons of the other picks</summary>", "")
        for pick in others:
            yield from (f"**{escaped(pick.title)}: {escaped(pick.label)}**", "")
            yield from (*(f"- {escaped(reason)}" for reason in pick.reasons), "")
        yield "</details>"


def _deploy(source: str) -> Iterator[str]:
    named = shlex.quote(visible(source).replace("\n", "\\n"))
    yield from ("", "## Deploy the pick", "")
    yield from _fenced(
        f"servetune deploy compose {named} --out bundle        # files for this machine\n"
        f"servetune deploy sagemaker {named} --plan            # checks and cost, before spending\n"
        f"servetune deploy sagemaker {named} --out bundle --apply"
    )


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(heads)
    yield "|" + "---|" * len(heads)
    yield from map(_row, rows)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(escaped(cell) for cell in cells)} |"


def escaped(text: str) -> str:
    """Text on one line that Markdown shows as it is."""
    line = " ".join(visible(text).split())
    return _LINKED.sub(r"\g<0><!-- -->", _MARKUP.sub(r"\\\g<0>", line))


def _fenced(text: str, language: str = "sh") -> Iterator[str]:
    """Block of code; its fence is longer than any run of backticks in the text."""
    text = visible(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}{language}", *text.splitlines(), fence)

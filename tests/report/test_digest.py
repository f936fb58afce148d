"""A run in words: Markdown for a pull request, HTML for a notebook, and hostile text in both."""

import html
import re

import msgspec
import pytest
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import digest_html, digest_markdown, digest_of, picks, table_html
from servetune.report.inline import MOST_BYTES, frame_html
from servetune.report.markdown import escaped
from servetune.search import PickDoubt, SearchSummary
from servetune.store.schema import Failure

LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")
EVIL = '</script><img src=x onerror=alert(1)> | `x` $a$ @someone\n# "title" \x1b[2J\u202e'


def digest(records=None, **options):
    records = factory.sweep() if records is None else records
    return digest_of(records, LIMITS, picks(records, LIMITS), **options)


def doubt(records, **fields):
    pick = picks(records, LIMITS)["throughput"].chosen
    found = PickDoubt(
        key=pick.key, label=pick.label, objective="throughput", simulated=False, margin=0.02,
        regret=0.01, **fields,
    )  # fmt: skip
    return SearchSummary(
        strategy="guided", seed=1, trial_count=27, total_count=81, stopped="that is enough",
        doubt=found,
    )  # fmt: skip


def failed():
    """A failed trial whose every text is hostile."""
    return msgspec.structs.replace(
        factory.sweep()[0],
        status="failed",
        cmd=EVIL,
        metadata=factory.sweep()[0].metadata.with_fields(model_tag=EVIL),
        failure=Failure(kind="oom", reason=EVIL),
    )


def test_a_summary_has_the_pick_its_reasons_and_doubt_the_limits_and_the_best_ten():
    records = factory.sweep()
    text = digest_markdown(digest(search=doubt(records, best=0.3)), source="out/q r.jsonl")
    pick = picks(records, LIMITS)["throughput"]
    assert text.startswith("# ")
    assert "SIMULATED: all 27 trials were simulated" in text
    assert "| constraints | e2e_latency:p99\\<=60s; request_throughput\\>=5 |" in text
    assert f"**Why {pick.chosen.label}**" in text
    assert all(f"- {escaped(reason)}" in text for reason in pick.reasons)
    assert "not settled: within 2% of the best with a probability of 30%" in text
    assert "rests on simulation alone" in text
    best = text.split("## The best 10 of 27 trials")[1].split("##")[0]
    assert len([line for line in best.splitlines() if line.startswith("|")]) == 12
    assert "servetune deploy compose 'out/q r.jsonl' --out bundle" in text
    columns = {line.count("|") for line in best.splitlines() if line.startswith("|")}
    assert len(columns) == 1, "every row has the cells of the head"


def test_a_single_run_has_its_figures_and_no_three_picks():
    text = digest_markdown(digest(factory.sweep()[:1]))
    assert "## Picks" not in text
    assert "| Time to first token, p99 |" in text
    assert re.search(r"\| constraint \| (holds|MISSES) e2e\\?_latency:p99", text)


def test_failed_trials_say_why():
    records = [failed(), *factory.sweep()[1:4]]
    text = digest_markdown(digest(records))
    assert "## Failed trials" in text
    assert "<img" not in text.replace("\\<img", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("max_num_seqs _x_", r"max_num_seqs \_x\_"),
        ("- item", r"\- item"),
        ("1. item 1.5", r"1\. item 1.5"),
        ("a\n\n# b", "a # b"),
        ("[x](https://e.org)", r"\[x\](https:<!-- -->//e.org)"),
        ("@someone #12", "@<!-- -->someone #<!-- -->12"),
        ("`code` *x* ~y~", r"\`code\` \*x\* \~y\~"),
        ("\x1b[2J", r"\\u001b\[2J"),
    ],
)
def test_text_from_outside_is_itself_in_markdown(text, shown):
    assert escaped(text) == shown


def test_a_command_cannot_leave_its_fence():
    command = "vllm serve '```'\n```\n# heading"
    records = [msgspec.structs.replace(one, cmd=command) for one in factory.sweep()]
    assert f"\n````sh\n{command}\n````\n" in digest_markdown(digest(records))


def test_what_a_notebook_shows_is_text_whatever_it_holds():
    records = [failed(), *factory.sweep()[1:]]
    for found in (
        digest_html(digest(records), page="<p>page"),
        table_html([EVIL], [[EVIL]], facts=[(EVIL, EVIL)], note=EVIL),
    ):
        assert "<img" not in found
        assert "<script" not in found
        assert "\x1b" not in found
        assert "tex2jax_ignore" in found, "or what is between two dollar signs becomes a formula"


def test_a_page_comes_whole_into_a_frame_that_reaches_nothing():
    page = '<!doctype html><p title="a">&amp;</p>'
    frame = frame_html(page)
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == page
    assert re.search(r'sandbox="([^"]*)"', frame)[1] == "allow-scripts allow-downloads"


def test_a_page_that_is_too_large_is_left_out_and_said():
    found = digest_html(digest(), page="x" * (MOST_BYTES + 1))
    assert "<iframe" not in found
    assert "too large for a notebook" in found


def test_a_table_rounds_numbers_and_has_a_dash_for_what_is_missing():
    found = table_html(["a", "b"], [[1234.5678, None], [0.00123456, float("nan")], [12345, True]])
    cells = re.findall(r"<td>(.*?)</td>", found)
    assert cells == ["1,235", "–", "0.001235", "–", "12,345", "True"]

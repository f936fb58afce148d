import msgspec
import pytest

from servetune.errors import InputError, UnknownName
from servetune.workload import Gamma
from servetune.workload.laws import Always, Normal
from servetune.workload.workload import Workload, one_part, read_workload, workload_of

FILE = """
summary = "questions about documents"
concurrency = 4
arrivals = "kind=gamma,rate_per_s=4,burstiness=0.5"
[[part]]
input_tokens = { kind = "normal", mean = 100, std = 10 }
output_tokens = 20
weight = 2
[part.sessions]
turns = 3
turn_tokens = 8
[part.documents]
pool = 5
each = 2
tokens = "12"
[[part]]
input_tokens = 5
output_tokens = 5
prefix.levels = [{ tokens = 3, branches = 2 }]
"""


def test_a_file_says_what_is_asked(tmp_path):
    path = tmp_path / "docs.toml"
    path.write_text(FILE)
    workload = read_workload(path)
    assert workload.name == "docs"
    assert workload.concurrency == 4
    assert workload.arrivals == Gamma(4.0, 0.5)
    first, second = workload.parts
    assert first.input_tokens == Normal(100, 10)
    assert first.output_tokens == Always(20)
    assert first.sessions.turns == Always(3)
    assert first.documents.tokens == Always(12)
    assert second.prefix.levels[0].branches == 2
    assert workload.needs_chat
    assert not one_part(5, 5).needs_chat


def test_a_workload_goes_through_json(tmp_path):
    path = tmp_path / "docs.toml"
    path.write_text(FILE)
    workload = read_workload(path)
    again = msgspec.json.decode(msgspec.json.encode(workload), type=Workload)
    assert again == workload
    assert hash(again) == hash(workload)
    assert again.requests() == workload.requests()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = = 1", "not TOML: .*line 1"),
        ("part = []", "has no part"),
        ("[[part]]\noutput_tokens = 1", "no input_tokens and output_tokens"),
        ("[[part]]\ninput_tokens = 1\noutput_tokens = 1\ncolour = 3", r"colour.*parts\[0\]"),
        ("[[part]]\ninput_tokens = 'normal:mean=3'\noutput_tokens = 1", "input_tokens: .*std"),
        ("[[part]]\ninput_tokens = 1\noutput_tokens = 1\nweight = 0", "weight of part .* positive"),
        ("[[part]]\ninput_tokens = 9\noutput_tokens = 1\n[part.prefix]\nskew = 1", "hit fraction"),
        ("[[part]]\ninput_tokens = 9\noutput_tokens = 1\nprefix.hit_fraction = 2.0", "0 and 1"),
        ("[[part]]\ninput_tokens = 9\ndataset.path = 'x.csv'", "has a data set"),
        ("[[part]]\ninput_tokens = 9\noutput_tokens = 1\ndistinct = 0", "cannot repeat 0"),
        (
            "[[part]]\ninput_tokens = 9\noutput_tokens = 1\ndocuments = {pool=2,each=3,tokens=4}",
            "choose 3 documents from 2",
        ),
        ("[[part]]\ninput_tokens = 9\noutput_tokens = 1\nimages.width = 0", "pictures of 0x512"),
        ("request_count = 0\n[[part]]\ninput_tokens = 1\noutput_tokens = 1", "at least one"),
    ],
)
def test_what_has_no_meaning_is_refused_with_its_place(tmp_path, text, problem):
    path = tmp_path / "w.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=problem) as error:
        read_workload(path)
    assert "w.toml" in str(error.value)


def test_a_law_that_is_not_known_names_the_known_ones():
    with pytest.raises(InputError, match="unknown kind of lengths 'gauss'") as error:
        one_part("gauss:mean=3", 1)
    assert "normal" in error.value.hint


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_workload(tmp_path / "none.toml")
    with pytest.raises((InputError, UnknownName)):
        workload_of({})

"""The catalogue: folders of the user's own, and all errors of a file at once."""

import pytest

from servetune.errors import InputError
from servetune.workload.catalogue import entry, problems_in
from servetune.workload.parts import Part
from servetune.workload.presets import known_workloads, preset, preset_names

PART = "input_tokens=5\noutput_tokens=5\n"

WRONG = """\
summary = "mine"
concurency = 4
duration_s = "long"
arrivals = "kind=gama,rate_per_s=2"

[[part]]
name = "chat"
input_tokens = "kind=normal,mean=-3,std=1"
output_tokens = 20
[part.sessions]
turns = 4
turn_token = 20

[[part]]
output_tokens = "kind=uniform,min=9,max=2"
input_tokens = 100
prefix.levels = [{ tokens = 0 }]
"""


def test_every_error_has_its_line_its_key_and_what_to_do(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(WRONG)
    found = {(each.line, each.key): each for each in problems_in(path)}
    assert set(found) == {
        (2, "concurency"),
        (3, "duration_s"),
        (4, "arrivals"),
        (8, "part[1].input_tokens"),
        (12, "part[1].sessions.turn_token"),
        (15, "part[2].output_tokens"),
        (17, "part[2].prefix"),
    }
    assert all(each.hint for each in found.values())
    assert "concurrency" in found[2, "concurency"].hint
    assert "turn_tokens" in found[12, "part[1].sessions.turn_token"].hint


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a = 1\nb = = 2\n", 2, "no TOML"),
        ("summary = 'x'\n", None, "no part"),
        ("[[part]]\ninput_tokens = 5\n", 1, "output_tokens"),
        ("[[part]]\ninput_tokens = 5\noutput_tokens = 5\ndataset = { pat = 'x' }\n", 4, "pat"),
        ("duration_s=1\narrivals='kind=scheduled,times_s=[5]'\n[[part]]\n" + PART, None, "within"),
    ],
)  # fmt: skip
def test_other_errors_of_files(tmp_path, text, line, word):
    path = tmp_path / "w.toml"
    path.write_text(text)
    first = problems_in(path)[0]
    assert first.line == line
    assert word in first.message + first.key


@pytest.mark.parametrize("name", preset_names())
def test_what_comes_along_has_no_error(tmp_path, name):
    from servetune.workload.presets import preset_text

    path = tmp_path / "w.toml"
    path.write_text(preset_text(name))
    assert problems_in(path) == ()


def test_a_users_folders_are_looked_up_by_name(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "desk.toml").write_text(
        "[[part]]\ninput_tokens = 7\noutput_tokens = 8\n[published]\nconcurrency = [1, 2]\n"
    )
    (tmp_path / "a" / "default.toml").write_text("broken")  # servetune's own name stays its own
    monkeypatch.setenv("SERVETUNE_WORKLOADS", f"{tmp_path / 'none'}:{tmp_path / 'a'}")
    assert known_workloads() == (*preset_names(), "desk")
    assert isinstance(preset("desk").parts[0], Part)
    found = entry("desk")
    assert found.source == str(tmp_path / "a" / "desk.toml")
    assert found.published.concurrency == (1, 2)
    monkeypatch.setenv("SERVETUNE_WORKLOADS", "")
    assert known_workloads() == preset_names()
    monkeypatch.delenv("SERVETUNE_WORKLOADS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "servetune").mkdir()
    (tmp_path / "a").rename(tmp_path / "servetune" / "workloads")
    assert "desk" in known_workloads()


def test_published_keys_are_checked(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text("[[part]]\ninput_tokens=5\noutput_tokens=5\n[published]\nsorce='x'\n")
    with pytest.raises(InputError, match="sorce"):
        entry(path)

"""Credentials planted in every way in, and looked for in every way out."""

import json

import pytest
from planted import FORMATS, PLAIN, PROSE, SECRET, SPELLINGS, leaks, texts

from servetune.secret import REDACTED, beginning, hide, redacted, redacted_text
from servetune.traffic.answer import excerpt


@pytest.mark.parametrize("spelling", SPELLINGS + PROSE)
def test_a_credential_is_taken_out_however_it_is_spelt(spelling):
    text = spelling.replace("¤", SECRET)
    assert SECRET not in redacted_text(text)
    assert SECRET not in redacted_text(f"12:00 INFO engine: {text} and more\nnext line")
    assert SECRET not in json.dumps(redacted({"a": [{"b": text}]}))
    assert redacted_text(redacted_text(text)) == redacted_text(text)


@pytest.mark.parametrize(
    "secret",
    ["9f3c2b1a7d6e5f4c3b2a19087f6e5d4c3b2a1908", "6f1c2b8e-52d1-4b0e-9f27-0a8b7c6d5e4f",
     "q7Zt3_wKx9-Lm2Pb8VnR4sYd", "wJ4lrXU3tnFEMI/K7MDENG+bPxRfiCY9EXa=", "hT4x.9Qm2.Zk7v8"],
)  # fmt: skip
def test_a_credential_is_taken_out_whatever_signs_it_has(secret):
    passed = [spelling.replace("¤", secret) for spelling in SPELLINGS]
    shown = {text: redacted_text(text) for text in passed if "https://" not in text}
    assert [text for text, left in shown.items() if secret[4:-1] in left] == []


@pytest.mark.parametrize("between", ["; ", " ", "\n", ", ", " | ", "\t", " and "])
def test_no_credential_hides_the_one_behind_it(between):
    told = texts()
    pairs = [f"{one}{between}{other}" for one in told[::4] for other in told[::5]]
    assert [text for text in pairs if leaks(redacted_text(text))] == []
    assert leaks(redacted_text(between.join(told))) == []


@pytest.mark.parametrize("most", range(1, 60))
def test_no_cut_leaves_a_half_of_a_credential(most):
    text = f"it failed with {FORMATS[0]} and HF_TOKEN={SECRET}-of-many-signs; see the log"
    assert leaks(beginning(text, most)) == []
    assert len(beginning(text, most)) <= most
    assert leaks(excerpt("x" * (250 + most // 2) + " " + text)) == []


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_without_a_credential_stays_as_it_is(text):
    assert redacted_text(text) == text
    assert redacted({"a": [text]}) == {"a": [text]}


@pytest.mark.parametrize(
    "value",
    [
        {"HF_TOKEN": SECRET},
        {"env": [{"name": "HF_TOKEN", "value": SECRET}]},
        {"apiKey": {"value": [SECRET]}},
        ["serve", "m", "--api-key", SECRET],
        ["serve", f"--api-key={SECRET}"],
        [["Authorization", f"Bearer {SECRET}"]],
        {"headers": {"x-api-key": SECRET, "Cookie": SECRET}},
        {"MY_SERVICE_KEY": SECRET, "CI_JOB_TOKEN": SECRET, "DB_PASS": SECRET},
        {f"https://u:{SECRET}@h": 1},
    ],
    ids=str,
)
def test_a_credential_is_taken_out_of_any_structure(value):
    assert SECRET not in json.dumps(redacted(value))


def test_the_value_of_a_variable_is_known_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "violet+orange/17 blue")
    hide("kestrel-1234-of-a-run")
    for value in ("violet+orange/17 blue", "kestrel-1234-of-a-run"):
        shown = redacted_text(f"a{value}b, cut off: {value[:-3]}")
        assert shown == f"a{REDACTED}b, cut off: {REDACTED}"
    assert redacted("violet%2Borange%2F17%20blue") == REDACTED
    monkeypatch.delenv("SOME_PASSWORD")
    assert redacted_text("violet+orange/17 blue") == "violet+orange/17 blue"


def test_plain_words_and_paths_of_variables_stay(monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "throughput")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/ada/key.json")
    assert redacted_text("throughput of /home/ada") == "throughput of /home/ada"


@pytest.mark.parametrize(
    "piece", ['api_key="', "'api_key': '", "//a:::", "token: ", "-", "api_key=[", "cookie: a=; ",
              "-----END PRIVATE KEY-----", "\\", "&quot;", "eyJaaaaaaaaaa."],
)  # fmt: skip
def test_hostile_text_takes_time_in_proportion_to_its_length(piece):
    text = piece * (50_000 // len(piece))
    assert len(redacted_text(text)) <= 2 * len(text)


@pytest.mark.parametrize(
    "cut", [slice(None, -40), slice(60, None), slice(None)], ids=["end", "begin", "whole"]
)
def test_a_private_key_of_which_a_part_is_cut_off_is_taken_out(cut):
    lines = "\n".join(f"MIIEpAIBAAKCAQEA{n}" for n in range(20))
    text = f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"[cut]
    assert "MIIE" not in redacted_text(text)

"""The AWS region: one rule for all commands that render for AWS or ask it."""

import pytest

import servetune as st
from servetune import api
from servetune.api.aws_region import ASSUMED_REGION, REGION, region_of
from servetune.api.request import fields_of
from servetune.errors import InputError, UnknownName

TRIAL = "examples/published/qwen3-4b-4xl4.jsonl"
VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_CONFIG_FILE")


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config"
    file.write_text("[profile mine]\nregion = eu-north-1\n[profile bare]\noutput = json\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))


@pytest.mark.parametrize(
    ("named", "profile", "environment", "region"),
    [
        ("eu-west-1", "mine", {"AWS_REGION": "eu-central-1"}, "eu-west-1"),
        (None, "mine", {"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "x"}, "eu-central-1"),
        (None, "mine", {"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"),
        (None, "mine", {"AWS_REGION": ""}, "eu-north-1"),
        (None, None, {"AWS_PROFILE": "mine"}, "eu-north-1"),
    ],
)
def test_the_first_that_names_a_region_decides(
    named, profile, environment, region, monkeypatch, caplog
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert region_of(named, profile) == region
    assert caplog.text == ""


def test_a_region_that_nobody_names_is_said_aloud(caplog):
    assert region_of(None, "bare") == ASSUMED_REGION
    assert f"no AWS region is set, and {ASSUMED_REGION} is used; give --region" in caplog.text


def test_a_profile_that_is_not_there_is_one_clear_error():
    with pytest.raises(InputError, match=r"AWS cannot be asked: .*nobody"):
        region_of(None, "nobody")


def test_every_option_region_is_declared_alike():
    kinds = [getattr(api, name) for name in api.__all__]
    verbs = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, st.Request)]
    found = [
        (kind.verb, field)
        for kind in verbs
        for field in fields_of(kind)
        if "--region" in field.names
    ]
    assert len(found) >= 9
    declared = REGION.extra["option"]
    for verb, field in found:
        assert (field.option, field.description) == (declared, REGION.description), verb
        assert field.default is None, verb


def test_a_bundle_is_of_the_environments_region(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    for options in ({}, {"target": "compose", "container": "lmi"}):
        for chosen, region in (({}, "eu-west-1"), ({"region": "eu-west-2"}, "eu-west-2")):
            rendered = st.render(TRIAL, dry_run=True, **options, **chosen)
            assert f".dkr.ecr.{region}.amazonaws.com" in str(rendered.bundle.files)


def test_a_service_without_aws_needs_no_region(monkeypatch, caplog):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert st.render(TRIAL, target="compose", dry_run=True)
    assert "region" not in caplog.text


def test_a_model_is_staged_in_the_environments_region(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "mars-1")
    with pytest.raises(UnknownName, match="AWS region 'mars-1'"):
        st.plan_staging(str(tmp_path), where="s3://bucket/x/")

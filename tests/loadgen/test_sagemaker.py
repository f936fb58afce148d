"""Load through SageMaker's runtime: a double that checks signatures and frames real answers."""

import contextlib
from urllib.parse import quote

import msgspec
import pytest
from load_options import load_options, run_load
from sagemaker_runtime import ACCESS_KEY, SECRET_KEY, TOKEN, SageMakerRuntime

from servetune.errors import InputError, ServerRefused
from servetune.loadgen.run import LoadSettings
from servetune.loadgen.sagemaker import (
    Endpoint,
    Session,
    aws_session,
    endpoint_target,
    invocation_account,
)
from servetune.loadgen.target import without
from servetune.testing import Behaviour, running_server
from servetune.traffic.sigv4 import Credentials
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import text_prompts, token_prompts
from servetune.workload.workload import Workload

CLOSED = Workload.of(LengthLaws.fixed(12, 8), request_count=30, concurrency=5)
SIGNED_AS = Credentials(ACCESS_KEY, SECRET_KEY, TOKEN)


@contextlib.asynccontextmanager
async def endpoint_of(behaviour=None, **options):
    """A fake engine, and the service before it."""
    async with running_server(behaviour or Behaviour()) as server:
        with SageMakerRuntime(server.port, **options) as runtime:
            yield server, runtime


async def load(runtime, workload=CLOSED, *, name="my-endpoint", api="completions", **more):
    session = Session(region="us-east-1", endpoint_url=runtime.url, credentials=lambda: SIGNED_AS)
    endpoint = Endpoint(name=name, component=more.pop("component", ""), route=more.pop("route", ""))
    target = endpoint_target(
        endpoint, session, model="fake", api=api, stream=more.pop("stream", True)
    )
    workload = msgspec.structs.replace(workload, api=api)
    made = (
        text_prompts
        if api == "chat"
        else lambda requests, seed: token_prompts(requests, 4096, seed)
    )
    prompts = made(workload.requests(), workload.seed)
    more.setdefault("credentials", lambda: SIGNED_AS)
    more.setdefault("timeout_s", 20.0)
    return target, await run_load(target, workload, prompts, **load_options(**more))


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_token_comes_through_frames_that_are_cut_anywhere(api, seed):
    async with endpoint_of(Behaviour(ttft_s=0.03, itl_s=0.001), seed=seed) as (server, runtime):
        _, result = await load(runtime, api=api)
    assert runtime.refused == []
    assert {record.outcome for record in result.records} == {"ok"}
    assert {record.output_tokens for record in result.records} == {8}
    assert {record.input_tokens for record in result.records} >= {12} or api == "chat"
    assert all(len(record.chunk_times_s) == 8 for record in result.records)
    assert server.peak_running_count == 5  # as many connections as users, and none waits
    assert len(server.truths) == 30 + 1  # and nothing was asked twice


@pytest.mark.timed
async def test_the_first_token_is_not_held_back_until_the_last():
    async with endpoint_of(Behaviour(ttft_s=0.01, itl_s=0.05)) as (server, runtime):
        one = msgspec.structs.replace(CLOSED, request_count=3, concurrency=1, warmup_count=0)
        _, result = await load(runtime, one)
        truths = server.truths
    for record, truth in zip(result.records, truths, strict=True):
        came_s = [at + result.started_monotonic_s for at in record.chunk_times_s]
        assert len(came_s) == len(truth.sent_s) == 8
        for came, left in zip(came_s, truth.sent_s, strict=True):
            assert came >= left - 1e-4
        assert came_s[0] < truth.sent_s[4]  # 0.2 s later


async def test_a_component_and_a_route_are_asked_for_and_signed():
    async with endpoint_of() as (_, runtime):
        _, result = await load(
            runtime, api="chat", component="adapter-1", route="/v1/chat/completions"
        )
    assert runtime.refused == []
    assert {record.outcome for record in result.records} == {"ok"}
    asked = runtime.asked[-1]
    assert asked["x-amzn-sagemaker-inference-component"] == "adapter-1"
    assert asked["x-amzn-sagemaker-custom-attributes"] == "route=/v1/chat/completions"


async def test_whole_answers_go_through_invoke_endpoint():
    async with endpoint_of() as (_, runtime):
        target, result = await load(runtime, stream=False)
    assert target.path.endswith("/invocations")
    assert {(record.outcome, record.output_tokens) for record in result.records} == {("ok", 8)}


async def test_throttles_are_counted_by_name_and_never_tried_again():
    async with endpoint_of() as (server, runtime):
        runtime.throttle_every = 4
        target, result = await load(runtime)
    throttled = [record for record in result.records if record.outcome != "ok"]
    assert len(throttled) == 7  # of 31 with the warm-up
    assert {record.detail for record in throttled} == {"ThrottlingException: Rate exceeded"}
    totals_of = invocation_account(target, result.records)
    assert totals_of["throttled"] == 7
    assert totals_of["failures_by_name"] == {"ThrottlingException": 7}
    assert totals_of["signing_s"] > 0
    assert totals_of["region"] == target.signing.region
    assert len(server.truths) == 31 - 7


async def test_a_failure_in_the_stream_keeps_what_came_before():
    async with endpoint_of() as (_, runtime):
        few = msgspec.structs.replace(CLOSED, request_count=4, warmup_count=0)
        target, result = await load(runtime, few, name="dies")
        _, broken = await load(runtime, few, name="corrupt")
    for record in result.records:
        assert record.outcome == "http_status"
        assert record.detail == "ModelStreamError ContainerFailed in the stream: worker died"
        assert record.chunk_times_s
    assert invocation_account(target, result.records)["model_error"] == 4
    assert {record.outcome for record in broken.records} == {"malformed"}


async def test_the_limit_of_an_invocation_is_a_failure_of_its_own():
    few = msgspec.structs.replace(CLOSED, request_count=4, warmup_count=0)
    async with endpoint_of() as (_, runtime):
        target, result = await load(runtime, few, name="slow")
    assert {record.outcome for record in result.records} == {"timeout"}
    assert invocation_account(target, result.records)["time_limit"] == 4


async def test_the_clients_own_time_out_is_told_apart():
    few = msgspec.structs.replace(CLOSED, request_count=2, warmup_count=0)
    async with endpoint_of(Behaviour(ttft_s=30.0)) as (_, runtime):
        target, result = await load(runtime, few, timeout_s=0.3)
    assert {record.outcome for record in result.records} == {"timeout"}
    totals_of = invocation_account(target, result.records)
    assert totals_of["failures_by_name"] == {"client time-out": 2}
    assert totals_of["time_limit"] == 0


async def test_what_the_service_refuses_is_reported_before_any_load():
    async with endpoint_of() as (_, runtime):
        with pytest.raises(ServerRefused, match="ValidationError: Endpoint missing") as caught:
            await load(runtime, name="missing")
        assert "InService" in caught.value.hint
        wrong = Credentials(ACCESS_KEY, "other", TOKEN)
        with pytest.raises(ServerRefused, match="does not match") as caught:
            await load(runtime, credentials=lambda: wrong)
        assert "InvokeEndpointWithResponseStream" in caught.value.hint
        assert "X-Amz-Security-Token:[session token]" in caught.value.message
        assert TOKEN not in caught.value.message + caught.value.body


async def test_new_credentials_are_used_while_the_run_goes_on(monkeypatch):
    monkeypatch.setattr("servetune.loadgen.run.CREDENTIALS_POLL_S", 0.0)
    new = Credentials("AKIDSECOND", "second-secret", "second-token")
    async with endpoint_of(Behaviour(itl_s=0.01)) as (_, runtime):
        runtime.secrets["AKIDSECOND"] = ("second-secret", "second-token")

        def current():
            return SIGNED_AS if len(runtime.asked) < 10 else new

        _, result = await load(runtime, credentials=current)
    assert runtime.refused == []
    assert {record.outcome for record in result.records} == {"ok"}
    keys = [asked["authorization"].partition("Credential=")[2][:10] for asked in runtime.asked]
    assert keys[0] == "AKIDEXAMPL"
    assert keys[-1] == "AKIDSECOND"


async def test_several_processes_sign_alike():
    async with endpoint_of(Behaviour(itl_s=0.001)) as (_, runtime):
        _, result = await load(runtime, settings=LoadSettings(processes=2, timeout_s=20.0))
    assert runtime.refused == []
    assert {record.outcome for record in result.records} == {"ok"}


async def test_the_openai_route_is_the_same_client_with_a_bearer_token(monkeypatch):
    monkeypatch.setenv("BEARER", "token-of-the-test")
    async with endpoint_of() as (_, runtime):
        session = Session(region="us-east-1", endpoint_url=runtime.url)
        target = endpoint_target(
            Endpoint(name="my-endpoint", openai=True),
            session,
            model="fake",
            api="chat",
            api_key_env="BEARER",
        )
        chat = msgspec.structs.replace(CLOSED, api="chat")
        prompts = text_prompts(chat.requests(), chat.seed)
        result = await run_load(target, chat, prompts, **load_options(timeout_s=20.0))
    assert str(target.origin).endswith("/endpoints/my-endpoint/openai")
    assert {(record.outcome, record.output_tokens) for record in result.records} == {("ok", 8)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "x" * 64}, "64 characters"),
        ({"name": "a_b"}, "not the name of an endpoint"),
        ({"name": "a", "component": "-b"}, "not the name of an inference component"),
        ({"name": "a", "route": "v1"}, "no route of a container"),
        ({"name": "a", "route": "/v1\r\nX: y"}, "no route of a container"),
        ({"name": "a", "route": "/v1", "openai": True}, "has its own path"),
    ],
)
def test_names_that_cannot_be_are_refused_before_any_call(given, message):
    with pytest.raises(InputError, match=message):
        Endpoint(**given)


def test_a_session_is_found_by_botos_own_chain(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="no AWS region"):
        aws_session(region=None)
    with pytest.raises(InputError, match="'mars' is not an AWS region"):
        aws_session(region="mars")
    with pytest.raises(InputError, match="no SageMaker is known in region 'us-east-9'"):
        aws_session(region="us-east-9")
    with pytest.raises(InputError, match="no AWS credentials"):
        aws_session(region="us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    session = aws_session(region="cn-north-1")
    assert session.endpoint_url == "https://runtime.sagemaker.cn-north-1.amazonaws.com.cn"
    assert session.credentials() == Credentials(ACCESS_KEY, SECRET_KEY)
    assert SECRET_KEY not in repr(session)
    with pytest.raises(InputError, match="profile"):
        aws_session(region="us-east-1", profile="nobody")


@pytest.mark.parametrize("kept", range(12, 21))
def test_a_secret_that_was_cut_short_is_taken_out_as_well(kept):
    secret = "abc/def+ghi=jklmnopq"
    assert without(f"token {secret[:kept]}", secret, "[token]") == "token [token]"
    assert without("nothing here", secret, "[token]") == "nothing here"
    assert without("a word", "", "[token]") == "a word"
    assert "jkl" not in without(f"quoted {quote(secret, safe='')}", secret, "[token]")

"""The signature against botocore's own, byte for byte."""

import datetime as dt
import time

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.traffic.sigv4 import Credentials, Signer, Signing

HOST = "runtime.sagemaker.us-east-1.amazonaws.com"


def theirs(signing, credentials, body, at):
    request = AWSRequest(
        "POST",
        f"https://{signing.host}{signing.path}",
        headers={"Host": signing.host, **dict(signing.signed)},
        data=body,
    )
    known = TheirCredentials(
        credentials.access_key, credentials.secret_key, credentials.token or None
    )
    auth = SigV4Auth(known, signing.service, signing.region)
    moment = dt.datetime.fromtimestamp(int(at), dt.UTC)
    request.context["timestamp"] = moment.strftime("%Y%m%dT%H%M%SZ")
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    if credentials.token:
        request.headers["X-Amz-Security-Token"] = credentials.token
    canonical = auth.canonical_request(request)
    return auth.signature(auth.string_to_sign(request, canonical), request)


@given(
    body=st.binary(max_size=400),
    at=st.floats(1.6e9, 2.0e9),
    token=st.sampled_from(["", "a+session/token=="]),
    component=st.sampled_from(["", "my-adapter-1"]),
)
@settings(max_examples=200, deadline=None)
def test_signatures_are_botocores(body, at, token, component):
    signed = (("content-type", "application/json"),)
    if component:
        signed += (("x-amzn-sagemaker-inference-component", component),)
    signing = Signing(
        region="us-east-1",
        service="sagemaker",
        host=HOST,
        path="/endpoints/my-endpoint/invocations-response-stream",
        signed=signed,
    )
    credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    ours = Signer(signing, credentials).headers(body, at).decode()
    assert ours.rstrip().endswith(f"Signature={theirs(signing, credentials, body, at)}")
    assert (f"X-Amz-Security-Token: {token}\r\n" in ours) == bool(token)


def test_a_signer_changes_seconds_days_and_credentials():
    signing = Signing(region="eu-west-1", service="sagemaker", host=HOST, path="/x")
    first, second = Credentials("A", "secret-one"), Credentials("B", "secret-two", "token")
    signer = Signer(signing, first)
    midnight = 1_800_000_000 // 86_400 * 86_400
    for credentials in (first, second):
        signer.use(credentials)
        for at in (midnight - 1, midnight, midnight + 1):
            ours = signer.headers(b"{}", at).decode()
            assert ours.rstrip().endswith(theirs(signing, credentials, b"{}", at))
            assert time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at)) in ours


def test_credentials_are_shown_to_nobody():
    assert "secret-one" not in f"{Credentials('A', 'secret-one')!r}{Credentials('A', 'secret-one')}"

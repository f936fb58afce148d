"""Staging into S3, against the double's multipart semantics and real boto3."""

import asyncio
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aws_kit import ROLE, World
from botocore_check import problems
from hypothesis import given
from hypothesis import strategies as st

import forked
from servetune.deploy.aws.client import AwsError
from servetune.deploy.staging import (
    MANIFEST,
    HubModel,
    Staged,
    combined_crc32,
    crc32_base64,
    download_job,
    model_files,
    place,
    stage,
)
from servetune.deploy.staging.upload import part_bytes
from servetune.errors import DeployError, InputError
from servetune.units import MIB

PART = 1 * MIB
WHERE = place("s3://bucket/models/tiny/")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards of two and a half parts, beside what no engine loads."""
    folder = tmp_path / "model"
    (folder / "original").mkdir(parents=True)
    (folder / ".cache").mkdir()
    rng = np.random.default_rng(7)
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in shards:
        (folder / name).write_bytes(rng.bytes(int(2.5 * PART)))
    index = {"weight_map": {f"layer.{n}": name for n, name in enumerate(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    (folder / "empty.txt").write_text("")
    (folder / "pytorch_model.bin").write_text("same again")
    (folder / "original" / "consolidated.00.pth").write_text("same again")
    (folder / ".cache" / "lock").write_text("")
    return folder


@pytest.fixture
def store(world: World) -> World:
    world.double.s3.least_part_bytes = PART
    return world


def send(world: World, folder: Path, **more: Any) -> Staged:
    return asyncio.run(
        stage(
            model_files(folder),
            WHERE,
            world.aws(),
            model="org/tiny",
            revision="abc",
            on_progress=world.messages.append,
            least_part_bytes=PART,
            **more,
        )
    )


def stored(world: World, name: str) -> bytes:
    body: bytes = world.double.s3.objects["bucket", f"models/tiny/{name}"]["body"]
    return body


def test_every_byte_arrives_and_the_models_id_is_kept(store: World, model: Path) -> None:
    done = send(store, model)
    names = {key.removeprefix("models/tiny/") for _, key in store.double.s3.objects}
    assert names == {
        "config.json", "empty.txt", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", MANIFEST,
    }  # fmt: skip
    for name in names - {MANIFEST}:
        assert stored(store, name) == (model / name).read_bytes()
    manifest = json.loads(stored(store, MANIFEST))
    assert (manifest["model"], manifest["revision"]) == ("org/tiny", "abc")
    crcs = {row["path"]: row["crc32"] for row in manifest["files"]}
    for name, crc in crcs.items():
        assert crc == crc32_base64(zlib.crc32((model / name).read_bytes()))
    assert store.double.operations().count("UploadPart") == 6
    assert store.double.s3.uploads == {}
    assert done.total_bytes == done.sent_bytes
    assert done.same_files == 0


def test_the_manifest_comes_last(store: World, model: Path) -> None:
    send(store, model)
    writes = [target for _, name, target in store.double.calls if name == "PutObject"]
    assert MANIFEST in writes[-1]


def test_running_it_again_sends_nothing_but_the_manifest(store: World, model: Path) -> None:
    send(store, model)
    store.double.calls.clear()
    done = send(store, model)
    assert (done.sent_bytes, done.same_files) == (0, 5)
    assert store.double.operations() == ["PutObject"]


def test_a_file_of_equal_size_and_other_content_is_sent_again(store: World, model: Path) -> None:
    send(store, model)
    path = model / "model-00001-of-00002.safetensors"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    send(store, model)
    assert stored(store, path.name) == bytes(changed)


@pytest.mark.parametrize("sent_before", range(6))
def test_an_upload_that_broke_off_goes_on_with_its_parts(
    store: World, model: Path, sent_before: int
) -> None:
    store.double.allowed["UploadPart"] = sent_before
    with pytest.raises(AwsError, match="UploadPart was refused"):
        send(store, model, jobs=1)
    del store.double.allowed["UploadPart"]
    store.double.calls.clear()
    send(store, model)
    assert store.double.operations().count("UploadPart") == 6 - sent_before
    assert store.double.s3.uploads == {}
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        assert stored(store, name) == (model / name).read_bytes()


def test_a_part_that_differs_is_sent_again(store: World, model: Path) -> None:
    store.double.allowed["UploadPart"] = 2
    with pytest.raises(AwsError):
        send(store, model, jobs=1)
    del store.double.allowed["UploadPart"]
    path = model / "model-00001-of-00002.safetensors"
    path.write_bytes(b"\0" * PART + path.read_bytes()[PART:])
    store.double.calls.clear()
    send(store, model)
    assert store.double.operations().count("UploadPart") == 5
    assert stored(store, path.name) == path.read_bytes()


def test_an_upload_that_was_cut_otherwise_is_aborted(store: World, model: Path) -> None:
    client = store.double.clients()("s3")
    key = "models/tiny/model-00001-of-00002.safetensors"
    left = client.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]
    client.upload_part(Bucket="bucket", Key=key, UploadId=left, PartNumber=1, Body=b"x" * 99)
    send(store, model)
    assert "AbortMultipartUpload" in store.double.operations()
    assert store.double.s3.uploads == {}


def test_slow_answers_of_s3_are_waited_out(store: World, model: Path) -> None:
    store.double.failing["UploadPart"] = 3
    send(store, model)
    assert len(store.double.s3.objects) == 6


def test_a_file_that_changes_meanwhile_is_noticed(store: World, model: Path) -> None:
    files = model_files(model)
    big = model / "model-00002-of-00002.safetensors"

    def on_progress(line: str) -> None:
        store.messages.append(line)

    aws = store.aws()
    asked = aws.call

    async def call(service: str, operation: str, /, **request: Any) -> Any:
        if operation == "CompleteMultipartUpload" and "00002-of" in request["Key"]:
            os.utime(big, (1, 1))
        return await asked(service, operation, **request)

    aws.call = call  # type: ignore[method-assign]
    with pytest.raises(DeployError, match="changed while it was sent"):
        asyncio.run(
            stage(
                files,
                WHERE,
                aws,
                model="m",
                revision=None,
                on_progress=on_progress,
                least_part_bytes=PART,
            )
        )


def test_a_missing_bucket_is_reported_before_anything_is_read(store: World, model: Path) -> None:
    store.double.s3.buckets.clear()
    with pytest.raises(InputError, match="no bucket 'bucket'") as caught:
        send(store, model)
    assert "aws s3 mb s3://bucket" in caught.value.hint


# What is a model, and what is a place


def test_a_download_that_is_not_whole_is_refused(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="1 of 2 shards are missing"):
        model_files(model)


def test_a_folder_without_weights_or_configuration_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        model_files(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds no weights"):
        model_files(tmp_path)


@pytest.mark.parametrize("uri", ["bucket/x", "s3://bucket", "s3://B/x", "s3:///x", ""])
def test_what_is_no_prefix_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match="names no prefix"):
        place(uri)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_the_crc_of_parts_is_that_of_the_whole(parts: list[bytes]) -> None:
    assert combined_crc32((zlib.crc32(p), len(p)) for p in parts) == zlib.crc32(b"".join(parts))


@given(st.integers(1, 50 * 10**12))
def test_no_file_needs_more_than_ten_thousand_parts(size_bytes: int) -> None:
    size = part_bytes(size_bytes)
    assert -(-size_bytes // size) <= 10_000
    assert size % MIB == 0


# As a job, and from the command line


def test_the_job_satisfies_the_services_model_with_the_longest_names() -> None:
    source = HubModel(
        model="o" * 96 + "/" + "n" * 96, weights_bytes=700e9, revision="main",
        secret_arn="arn:aws:secretsmanager:eu-west-1:123456789012:secret:hf-AbCdEf",
    )  # fmt: skip
    job = download_job(source, WHERE, region="eu-west-1", role_arn=ROLE)
    assert problems("CreateProcessingJob", job) == []
    assert job["ProcessingResources"]["ClusterConfig"]["VolumeSizeInGB"] == 878
    entry = job["AppSpecification"]["ContainerEntrypoint"]
    assert entry[:2] == ["python3", "-c"]
    compile(entry[2], "job", "exec")
    compile("".join(entry[3:]), "job", "exec")
    assert "hf_" not in json.dumps(job)


def test_what_the_job_runs_leaves_the_model_and_its_original_id(tmp_path: Path) -> None:
    """The job's own code, with a hub that has weights in three forms."""
    (tmp_path / "huggingface_hub.py").write_text(
        "import fnmatch, os\n"
        "FILES = ('config.json', 'sub/w.safetensors', 'pytorch_model.bin', 'consolidated.pth',\n"
        "         'original/consolidated.00.pth', 'figure.png')\n"
        "class HfApi:\n"
        "    def __init__(self, token):\n"
        "        assert token is None\n"
        "    def list_repo_files(self, model, revision):\n"
        "        assert (model, revision) == ('org/tiny', 'v2')\n"
        "        return FILES\n"
        "def snapshot_download(model, *, revision, local_dir, token, ignore_patterns):\n"
        "    assert (model, revision, token) == ('org/tiny', 'v2', None)\n"
        "    for name in ('.cache/huggingface/x', *FILES):\n"
        "        if not any(fnmatch.fnmatch(name, each) for each in ignore_patterns):\n"
        "            os.makedirs(os.path.dirname(local_dir + '/' + name), exist_ok=True)\n"
        "            open(local_dir + '/' + name, 'w').write('12345')\n"
    )
    source = HubModel(model="org/tiny", weights_bytes=1e9, revision="v2", exclude=("*.png",))
    job = download_job(source, WHERE, region="us-east-1", role_arn=ROLE)
    assert problems("CreateProcessingJob", job) == []
    _, *words = job["AppSpecification"]["ContainerEntrypoint"]
    out = tmp_path / "out"
    out.mkdir()
    environ = job["Environment"] | {"OUT": str(out), "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, *words], env=environ, check=True, timeout=60)
    assert json.loads((out / MANIFEST).read_text()) == {
        "model": "org/tiny",
        "revision": "v2",
        "files": [
            {"path": "config.json", "size_bytes": 5},
            {"path": "sub/w.safetensors", "size_bytes": 5},
        ],
    }
    assert not (out / ".cache").exists()


def test_another_revision_is_another_job() -> None:
    names = {
        download_job(
            HubModel(model="a/b", revision=revision), WHERE, region="us-east-1", role_arn=ROLE
        )["ProcessingJobName"]
        for revision in (None, "v2")
    }
    assert len(names) == 2


def test_a_model_beyond_any_disk_is_refused() -> None:
    with pytest.raises(InputError, match="GiB of disk"):
        download_job(
            HubModel(model="a/b", weights_bytes=2e13), WHERE, region="us-east-1", role_arn=ROLE
        )


def run(folder: Path, *words: str, **environ: str) -> Any:
    keep = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "PYTHONPATH", "SERVETUNE_HOME")
        if name in os.environ
    }
    return forked.run(
        [*forked.COMMAND, "stage", *words], cwd=folder, env=keep | environ, timeout=120
    )  # fmt: skip


def test_a_cached_model_is_staged_by_its_id_with_its_revision(
    store: World, model: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "models--org--tiny"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("c0ffee")
    (cache / "snapshots").mkdir()
    model.rename(cache / "snapshots" / "c0ffee")
    environ = store.double.environ | {"HF_HUB_CACHE": str(tmp_path / "cache")}
    done = run(tmp_path, "org/tiny", WHERE.uri, **environ)
    assert done.returncode == 0, done.stderr
    assert WHERE.uri in done.stdout
    manifest = json.loads(stored(store, MANIFEST))
    assert (manifest["model"], manifest["revision"]) == ("org/tiny", "c0ffee")


def test_dry_run_sends_nothing_and_unknown_models_are_one_line(
    store: World, model: Path, tmp_path: Path
) -> None:
    shown = run(tmp_path, str(model), WHERE.uri, "--dry-run", **store.double.environ)
    assert shown.returncode == 0, shown.stderr
    assert "model-00001-of-00002.safetensors" in shown.stdout
    assert store.double.calls == []
    wrong = run(tmp_path, "org/nothing", WHERE.uri, HF_HUB_CACHE=str(tmp_path / "none"))
    assert wrong.returncode == 2
    assert "neither a folder nor in the hub's cache" in wrong.stderr


def test_the_job_is_started_once_and_again_only_when_its_work_is_gone(
    store: World, tmp_path: Path
) -> None:
    words = ("Qwen/Qwen3-4B", WHERE.uri, "--as-job", "--role-arn", ROLE, "--poll-s", "0")
    store.double.control.job_s = 0
    at = {"Bucket": WHERE.bucket, "Key": WHERE.key(MANIFEST)}
    client = store.double.clients()("s3")

    def jobs() -> list[str]:
        done = run(tmp_path, *words, **store.double.environ)
        assert done.returncode == 0, done.stderr
        return [name for kind, name in store.double.control.rows if kind == "ProcessingJob"]

    (first,) = jobs()
    client.put_object(**at, Body=b'{"model": "Qwen/Qwen3-4B", "revision": null}')
    assert jobs() == [first]
    client.put_object(**at, Body=b'{"model": "org/other", "revision": null}')
    assert jobs() == [first, f"{first[:60]}-2"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("org/tiny", "s3://bucket"), "names no prefix in S3"),
        (("org/tiny", WHERE.uri, "--region", "mars-1"), "unknown AWS region 'mars-1'"),
        (("org/tiny", WHERE.uri, "--as-job"), "no execution role"),
        (("org/tiny", WHERE.uri, "--as-job", "--role-arn", "me"), "'me' is not the ARN of a role"),
        (("org/tiny", WHERE.uri, "--hf-token-secret", "hf_x"), "not a token"),
    ],
)
def test_bad_input_is_one_line_before_any_call(
    store: World, tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    done = run(tmp_path, *words, **store.double.environ)
    assert done.returncode == 2
    assert line in done.stderr
    assert store.double.calls == []

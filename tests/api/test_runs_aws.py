"""Export to S3, its table in Glue, and Athena: real boto3 against moto's server on the loopback."""

import csv
import json
import logging
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from servetune import api
from servetune.clock import VirtualClock
from servetune.deploy.aws.athena import AthenaPlace, ask
from servetune.deploy.aws.client import AwsClient
from servetune.errors import DeployError, InputError

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra 'parquet')")
boto3 = pytest.importorskip("boto3", reason="boto3 is not installed (extra 'aws')")
moto_server = pytest.importorskip("moto.server", reason="moto is not installed (group dev)")

REGION = "us-east-1"
BEST = (
    "SELECT instance, max(output_token_throughput_tps) AS best FROM benchmark_results "
    "WHERE kind = 'measured' AND ttft_p99_ms <= 2000 GROUP BY instance ORDER BY best DESC"
)


@pytest.fixture(scope="session")
def moto_address():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(moto_address, monkeypatch):
    """Clients of an empty account, which the verbs reach by the variables that users set."""
    urllib.request.urlopen(
        urllib.request.Request(f"{moto_address}/moto-api/reset", method="POST"), timeout=10
    ).close()
    for name, value in {
        "AWS_ENDPOINT_URL": moto_address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, value)
    clients = {each: boto3.client(each, region_name=REGION) for each in ("s3", "glue")}
    clients["s3"].create_bucket(Bucket="lake")
    yield clients
    for each in clients.values():
        each.close()


def line(concurrency, tokens_per_s, at="2026-01-02T00:00:00+00:00", **changes):
    return {
        "config": {"client_args": {"max_concurrency": concurrency}, "server_args": {}},
        "results": {
            "max_concurrency": concurrency,
            "output_throughput": tokens_per_s,
            "p99_ttft_ms": 40.0 * concurrency,
            "completed": 10,
        },
        "metadata": {
            "model_tag": "Qwen/Qwen3-4B",
            "framework": "vllm",
            "instance_type": "ml.g6.12xlarge",
        },
        "key": f"k{concurrency}",
        "provenance": {"started_at": at},
    } | changes


@pytest.fixture
def journal(tmp_path):
    """Journal of three trials, of which the fastest misses 2 s and one is simulated."""
    return journal_of(
        tmp_path / "q.jsonl", line(8, 300.0), line(32, 900.0), line(64, 1200.0, simulated=True)
    )


def journal_of(path, *lines):
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def keys(aws):
    return sorted(each["Key"] for each in aws["s3"].list_objects_v2(Bucket="lake")["Contents"])


def test_an_export_is_registered_in_glue_once_and_read_back_by_the_same_sql(aws, journal):
    done = api.export_runs(journal, to="s3://lake/results", glue="mlcc_ci")
    assert (done.trials, done.simulated_left_out) == (2, 1)
    assert (done.registered.table_created, done.registered.created) == (True, 1)
    [key] = keys(aws)
    folder = "results/model=Qwen_Qwen3-4B/instance=ml.g6.12xlarge/target=local/"
    assert key.startswith(f"{folder}run-")
    table = {"DatabaseName": "mlcc_ci", "TableName": "benchmark_results"}
    [partition] = aws["glue"].get_partitions(**table)["Partitions"]
    assert partition["Values"] == ["Qwen_Qwen3-4B", "ml.g6.12xlarge", "local"]
    described = partition["StorageDescriptor"]
    assert described["Location"] == f"s3://lake/{folder}"
    assert {"Name": "concurrency", "Type": "int"} in described["Columns"]
    tag = aws["s3"].head_object(Bucket="lake", Key=key)["LastModified"]
    again = api.export_runs(journal, to="s3://lake/results", glue="mlcc_ci.benchmark_results")
    assert [each.state for each in again.files] == ["unchanged"]
    assert (again.registered.created, again.registered.existing) == (0, 1)
    assert aws["s3"].head_object(Bucket="lake", Key=key)["LastModified"] == tag
    pytest.importorskip("duckdb")
    there = api.query_runs(BEST, sources=["s3://lake/results"])
    here = api.query_runs(BEST, sources=[str(journal)])
    assert there.rows == here.rows == (("ml.g6.12xlarge", 900.0),)


def test_an_export_above_another_prefix_leaves_its_objects_and_a_dry_run_writes_none(aws, journal):
    api.export_runs(journal, to="s3://lake/results/prod")
    before = keys(aws)
    planned = api.export_runs(journal, to="s3://lake/results", glue="mlcc_ci", dry_run=True)
    assert [each.state for each in planned.files] == ["written"]
    assert (planned.registered, keys(aws)) == (None, before)
    api.export_runs(journal, to="s3://lake/results")
    assert len(keys(aws)) == 2
    moved = {"to": "s3://lake/results", "deployment_target": "url"}
    planned = api.export_runs(journal, **moved, dry_run=True)
    assert [each.state for each in planned.files] == ["written", "removed"]
    assert api.export_runs(journal, **moved).files == planned.files
    assert set(before) < set(keys(aws))


def test_two_exports_at_once_of_copies_that_went_on_differently_lose_no_trial(aws, tmp_path):
    copies = [journal_of(tmp_path / f"{n}.jsonl", line(1, 9.0), line(n, 9.0)) for n in (2, 3, 4, 5)]
    api.export_runs(copies[0], to="s3://lake/results")
    with ThreadPoolExecutor(3) as pool:  # msgspec's first look at a type is not for threads
        list(pool.map(lambda each: api.export_runs(each, to="s3://lake/results"), copies[1:]))
    assert len(keys(aws)) == 1
    found = api.query_runs(
        "SELECT list(concurrency ORDER BY concurrency) FROM results", sources=["s3://lake/results"]
    )
    assert found.rows[0][0] == [1, 2, 3, 4, 5]


def test_a_table_of_users_gets_our_columns_and_its_partitions_too(aws, journal):
    api.export_runs(journal, to="s3://lake/results", glue="mlcc_ci")
    name = {"DatabaseName": "mlcc_ci", "Name": "benchmark_results"}
    table = aws["glue"].get_table(**name)["Table"]
    older = {key: table[key] for key in ("Name", "PartitionKeys", "StorageDescriptor")}
    columns = [{"Name": "theirs", "Type": "string"}, *table["StorageDescriptor"]["Columns"][:60]]
    older["StorageDescriptor"] = {**table["StorageDescriptor"], "Columns": columns}
    aws["glue"].update_table(DatabaseName="mlcc_ci", TableInput=older)
    done = api.export_runs(journal, to="s3://lake/results", glue="mlcc_ci")
    assert "kind" in done.registered.added_columns
    now = aws["glue"].get_table(**name)["Table"]["StorageDescriptor"]["Columns"]
    assert now[:61] == columns
    [partition] = aws["glue"].get_partitions(DatabaseName="mlcc_ci", TableName="benchmark_results")[
        "Partitions"
    ]
    assert partition["StorageDescriptor"]["Columns"] == now


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it["StorageDescriptor"]["Columns"].insert(0, {"Name": "kind", "Type": "int"}),
         "the column kind is int, files have it as string"),
        (lambda it: it.update(PartitionKeys=[{"Name": "year", "Type": "string"}]),
         "has the partition keys year, not model, instance, target"),
    ],
)  # fmt: skip
def test_another_table_of_that_name_is_left_as_it_is(aws, journal, change, message):
    aws["glue"].create_database(DatabaseInput={"Name": "other"})
    table = {
        "Name": "t",
        "PartitionKeys": [{"Name": n, "Type": "string"} for n in ("model", "instance", "target")],
        "StorageDescriptor": {"Columns": [], "Location": "s3://lake/other/"},
    }
    change(table)
    aws["glue"].create_table(DatabaseName="other", TableInput=table)
    with pytest.raises(DeployError, match=message):
        api.export_runs(journal, to="s3://lake/results", glue="other.t")
    assert aws["glue"].get_partitions(DatabaseName="other", TableName="t")["Partitions"] == []


def test_a_partition_of_another_folder_is_an_error_that_names_both(aws, journal):
    api.export_runs(journal, to="s3://lake/results", glue="mlcc_ci")
    with pytest.raises(DeployError, match=r"has its files in s3://lake/results/.*/elsewhere/"):
        api.export_runs(journal, to="s3://lake/elsewhere", glue="mlcc_ci")


def test_what_s3_refuses_is_one_line_with_the_next_step(aws, journal, monkeypatch, moto_address):
    with pytest.raises(InputError, match="no bucket 'no-such'"):
        api.export_runs(journal, to="s3://no-such/results")
    iam = boto3.client("iam", region_name=REGION)
    iam.create_user(UserName="reader")
    may = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket", "s3:HeadBucket", "s3:GetObject"],
        "Resource": "*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [may]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    iam.close()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    checked_from(moto_address, b"0")
    try:
        with pytest.raises(DeployError, match=r"(HeadBucket|PutObject) was refused") as error:
            api.export_runs(journal, to="s3://lake/results")
    finally:
        checked_from(moto_address, b"inf")
    assert "docs/guides/athena.md" in error.value.hint
    assert "Contents" not in aws["s3"].list_objects_v2(Bucket="lake")


def checked_from(moto_address, requests):
    """Have moto check permissions after so many requests."""
    url = f"{moto_address}/moto-api/reset-auth"
    urllib.request.urlopen(
        urllib.request.Request(
            url, data=requests, method="POST", headers={"Content-Type": "text/plain"}
        ),
        timeout=10,
    )


def test_half_a_file_in_s3_is_an_error_that_names_it(aws, journal):
    api.export_runs(journal, to="s3://lake/results")
    [key] = keys(aws)
    whole = aws["s3"].get_object(Bucket="lake", Key=key)["Body"].read()
    aws["s3"].put_object(Bucket="lake", Key=key, Body=whole[:500])
    with pytest.raises(Exception, match=f"s3://lake/{key} is no whole Parquet file"):
        api.query_runs("SELECT 1", sources=["s3://lake/results"])


def seed_athena(moto_address, columns, rows):
    texts = [columns, *[[None if v is None else str(v) for v in row] for row in rows]]
    data = [{"Data": [{} if t is None else {"VarCharValue": t} for t in row]} for row in texts]
    types = ("varchar", "double")
    info = [{"Name": n, "Type": t} for n, t in zip(columns, types, strict=True)]
    queued = {"results": [{"rows": data, "column_info": info}], "region": REGION}
    url = f"{moto_address}/moto-api/static/athena/query-results"
    body = json.dumps(queued).encode()
    urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=10)


def test_athena_gives_typed_rows_under_the_columns_names_and_says_its_cost(
    aws, moto_address, journal, tmp_path
):
    here = api.query_runs(BEST, sources=[str(journal)])
    seed_athena(moto_address, ["instance", "best"], [*here.rows, ("ml.g5.xlarge", None)])
    out = tmp_path / "best.csv"
    found = api.query_runs(BEST, athena=True, output_location="s3://lake/athena/", out=out)
    assert found.columns == here.columns
    assert found.rows == (*here.rows, ("ml.g5.xlarge", None))
    assert "Athena scanned 0 B, $0.000000" in found.note()
    with out.open() as lines:
        assert next(csv.DictReader(lines)) == {"instance": "ml.g6.12xlarge", "best": "900.0"}


class Athena:
    """Athena's answers in turn, by operation; requests that were sent are in `sent`."""

    def __init__(self, **answers):
        self.sent, self._answers = [], answers

    def __getattr__(self, operation):
        def send(**request):
            self.sent.append((operation, request))
            return self._answers[operation].pop(0)

        return send


def execution(state, scanned=0, **status):
    return {
        "QueryExecution": {
            "Status": {"State": state, **status},
            "Statistics": {"DataScannedInBytes": scanned},
        }
    }


def page(*texts, **more):
    return {
        "ResultSet": {
            "Rows": [{"Data": [{"VarCharValue": text} if text else {}]} for text in texts],
            "ResultSetMetadata": {"ColumnInfo": [{"Name": "n", "Type": "bigint"}]},
        },
        **more,
    }


async def answered(athena):
    client = AwsClient(REGION, clock=VirtualClock(), clients=lambda _: athena)
    return await ask("SELECT n", AthenaPlace(database="d", workgroup="w"), client)


async def test_a_query_is_waited_for_and_all_pages_of_its_rows_are_read():
    athena = Athena(
        start_query_execution=[{"QueryExecutionId": "q1"}],
        get_query_execution=[
            execution("QUEUED"),
            execution("RUNNING"),
            execution("SUCCEEDED", 3e12),
        ],
        get_query_results=[page("n", "1", NextToken="more"), page("2", None)],
    )
    found = await answered(athena)
    assert (found.columns, found.rows) == (("n",), ((1,), (2,), (None,)))
    assert found.cost_usd == 15.0  # 3 TB at $5
    assert athena.sent[0][1]["WorkGroup"] == "w"
    assert athena.sent[-1][1] == {"QueryExecutionId": "q1", "NextToken": "more"}


async def test_a_query_that_fails_says_athenas_reason():
    athena = Athena(
        start_query_execution=[{"QueryExecutionId": "q1"}],
        get_query_execution=[execution("FAILED", StateChangeReason="COLUMN_NOT_FOUND: line 1:8")],
    )
    with pytest.raises(DeployError, match="Athena: COLUMN_NOT_FOUND: line 1:8") as error:
        await answered(athena)
    assert "q1" in error.value.hint

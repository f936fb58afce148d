import csv
import json
import math
import shlex
from pathlib import Path

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_config, load_shape
from servetune.perf import Calibration, run_features
from servetune.perf.roofline import PlannedRun
from servetune.perf.roofline.similarity import similarity_of
from servetune.plan import Plan
from servetune.workload import LengthLaws

PUBLISHED = Path(__file__).parents[2] / "examples/published/qwen3-4b-4xl4.jsonl"
ON_L4 = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--num-gpus", "4")


@pytest.fixture
def servetune(called):
    return called


@pytest.fixture
def run(servetune, tmp_path, monkeypatch):
    monkeypatch.setenv("SERVETUNE_CALIBRATIONS", str(tmp_path / "kept"))
    return servetune


def tpot_factor(run, *arguments):
    done = run("calibrate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["calibration"]["tpot_factor"]


def test_measured_trials_pull_predictions_towards_them(run, tmp_path):
    factor = tpot_factor(run, PUBLISHED, "--name", "l4")
    kept = json.loads(run("calibrate", "--show", "l4", "--json").stdout)
    ratios = [
        a["anchor"]["measured_tpot_ms"] / a["anchor"]["predicted_tpot_ms"] for a in kept["anchors"]
    ]
    assert len(ratios) == 3
    assert 0.995 * min(1, *ratios) <= factor <= max(1, *ratios)

    tune = (
        "tune",
        "--engine",
        "simulated",
        *ON_L4,
        "--server-args",
        "tensor_parallel_size=4;max_num_batched_tokens=8192",
        "--client-args",
        "max_concurrency=32;num_prompts=1000;dataset_name=sharegpt",
    )
    assert run(*tune, "--output-json", "plain.json").returncode == 0
    assert run(*tune, "--output-json", "corrected.json", "--calibration", "l4").returncode == 0
    plain, corrected = (
        json.loads((tmp_path / f"{name}.jsonl").read_text()) for name in ("plain", "corrected")
    )
    changed = corrected["results"]["mean_tpot_ms"] / plain["results"]["mean_tpot_ms"]
    # One of 32 users corrects that load most; the factor is of all loads and causes together.
    assert changed == pytest.approx(ratios[0], rel=0.03)
    assert changed > factor
    assert corrected["metadata"]["calibration"] == "l4"
    truth = json.loads(PUBLISHED.read_text().splitlines()[0])["results"]["mean_tpot_ms"]
    assert corrected["results"]["mean_tpot_ms"] == pytest.approx(truth, rel=0.03)


def test_more_anchors_are_believed_more(run, tmp_path):
    lines = PUBLISHED.read_text().splitlines()
    slow = json.loads(lines[0])
    slow["results"]["mean_tpot_ms"] *= 3
    (tmp_path / "slow.jsonl").write_text(json.dumps(slow) + "\n")
    several = []
    for seed in range(3):
        slow["config"]["client_args"]["seed"] = seed
        several.append(json.dumps(slow))
    (tmp_path / "slow3.jsonl").write_text("\n".join(several) + "\n")
    one, three = tpot_factor(run, "slow.jsonl"), tpot_factor(run, "slow3.jsonl")
    assert 1 < one < three


def test_estimates_are_corrected_and_say_so(run):
    assert run("calibrate", PUBLISHED, "--name", "l4").returncode == 0
    base = ("estimate", *ON_L4, "--tensor-parallel", "4", "--json")
    plain = json.loads(run(*base).stdout)["chosen"]["answer"]
    corrected = json.loads(run(*base, "--calibration", "l4").stdout)["chosen"]["answer"]
    assert corrected["best_latency"]["itl_ms"] != plain["best_latency"]["itl_ms"]
    assert "calibrated by 3" in corrected["coefficients"]


def slowed_first_tokens(tmp_path, times=3):
    """Three journals' worth of the published trial with later first tokens."""
    trial = json.loads(PUBLISHED.read_text().splitlines()[0])
    trial["results"]["mean_ttft_ms"] *= times
    lines = []
    for seed in range(3):
        trial["config"]["client_args"]["seed"] = seed
        lines.append(json.dumps(trial))
    path = tmp_path / "late.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


#: More than doubt about all causes of one run together.
OF_CAUSES = 0.5


def on_four(users):
    return PlannedRun(
        shape=load_shape("Qwen/Qwen3-4B", catalogue_first=True),
        node=node(gpu="L4", count=4),
        plan=Plan(model="Qwen/Qwen3-4B", tensor_parallel=4),
        lengths=LengthLaws.fixed(1024, 512),
        concurrency=users,
        request_count=10 * users,
    )


def test_first_tokens_are_corrected_in_every_form_of_estimate(run, tmp_path):
    assert run("calibrate", slowed_first_tokens(tmp_path), "--name", "late").returncode == 0
    kept = msgspec.convert(
        json.loads(run("calibrate", "--show", "late", "--json").stdout)["calibration"], Calibration
    )
    assert kept.ttft_factor > 1.15
    (alone_there,) = kept.at(*run_features([on_four(1)]))
    one = ("estimate", *ON_L4, "--tensor-parallel", "4", "--json")

    def alone(*arguments):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain, late = alone(*one)["chosen"], alone(*one, "--calibration", "late")["chosen"]
    first, corrected = (each["answer"]["best_latency"] for each in (plain, late))
    assert corrected["ttft_ms"] == pytest.approx(
        alone_there.ttft_factor * first["ttft_ms"], rel=1e-6
    )
    assert corrected["itl_ms"] == pytest.approx(alone_there.tpot_factor * first["itl_ms"], rel=1e-6)
    assert plain["answer"]["interval"]["extrapolation"] != "anchored"
    band, wide = late["answer"]["interval"], plain["answer"]["interval"]
    assert band["extrapolation"] == "anchored"
    assert band["ttft_high_factor"] < wide["ttft_high_factor"]
    assert band["high_factor"] < wide["high_factor"]

    sweep = ("estimate", *ON_L4, "--sweep", "--target", "latency", "--top", "1", "--json")
    quick, slow = (alone(*sweep, *extra)["ranked"][0] for extra in ((), ("--calibration", "late")))
    assert slow["swept"]["point"]["ttft_ms"] > 1.1 * quick["swept"]["point"]["ttft_ms"]
    assert slow["interval"]["extrapolation"] == "anchored"
    assert "corrected by measured runs" in run(*sweep[:-1], "--calibration", "late").stdout


def test_a_sweep_corrects_each_plan_by_its_own_place(run, tmp_path):
    """The trials ran on four devices together: they say most of plans that do."""
    assert run("calibrate", slowed_first_tokens(tmp_path), "--name", "late").returncode == 0
    sweep = ("estimate", *ON_L4, "--sweep", "--json", "--confidence", "0.75")

    def by_degree(*extra):
        done = run(*sweep, "--constraints", "itl<=40ms", *extra)
        assert done.returncode == 0, done.stderr
        swept = json.loads(done.stdout)["ranked"]
        stored = [one for one in swept if one["swept"]["plan"]["quantization"] is None]
        return {one["swept"]["plan"]["tensor_parallel"]: one for one in stored}

    plain, late = by_degree(), by_degree("--calibration", "late")
    four, one = (late[degree]["swept"]["correction"] for degree in (4, 1))
    assert four["ttft_factor"] > one["ttft_factor"] > 1
    for quantity in ("tpot", "ttft"):
        unknown = similarity_of(quantity).unknown
        for found in (four, one):
            assert 0 < found[f"{quantity}_doubt"] < math.hypot(unknown, OF_CAUSES)
        name = f"{quantity}_factor"
        assert late[4]["caution"][name] < plain[4]["caution"][name]
    # Only first tokens were slowed, so what is known of the time per token is much the same.
    assert late[4]["interval"]["high_factor"] < 1.01 * plain[4]["interval"]["high_factor"]
    assert late[4]["interval"]["extrapolation"] == "anchored"
    assert plain[4]["swept"]["correction"] is None


def test_a_calibrated_machine_is_trusted_a_little_more(run):
    assert run("calibrate", PUBLISHED, "--name", "l4").returncode == 0
    sweep = ("estimate", *ON_L4, "--sweep", "--json", "--top", "1")
    said = {
        extra: json.loads(run(*sweep, *extra).stdout)["confidence"]
        for extra in ((), ("--calibration", "l4"), ("--calibration", "l4", "--confidence", "0.9"))
    }
    assert list(said.values()) == [0.8, 0.75, 0.9]


def test_rows_of_a_table_are_corrected_where_the_calibration_is_of_them(run, tmp_path):
    assert run("calibrate", slowed_first_tokens(tmp_path), "--name", "late").returncode == 0
    rows = "model,gpu,isl,osl,concurrency,tp\n"
    rows += "Qwen/Qwen3-4B,L4,512,128,8,4\nQwen/Qwen3-4B,H100,512,128,8,1\n"
    (tmp_path / "rows.csv").write_text(rows)
    batch = ("estimate", "--batch", "rows.csv", "--out")
    assert run(*batch, "plain.csv").returncode == 0
    assert run(*batch, "late.csv", "--calibration", "late").returncode == 0
    plain, late = (
        list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
        for name in ("plain", "late")
    )
    assert float(late[0]["ttft_ms"]) > 1.2 * float(plain[0]["ttft_ms"])
    spread = [float(r["ttft_high_ms"]) / float(r["ttft_low_ms"]) for r in (plain[0], late[0])]
    assert spread[1] < spread[0]
    assert late[1] == plain[1]
    only_h100 = rows.splitlines()
    (tmp_path / "other.csv").write_text("\n".join([only_h100[0], only_h100[2]]) + "\n")
    done = run("estimate", "--batch", "other.csv", "--out", "o.csv", "--calibration", "late")
    assert "none is corrected" in done.stderr


def test_only_machines_with_the_measured_device_are_corrected(run, tmp_path):
    assert run("calibrate", slowed_first_tokens(tmp_path), "--name", "late").returncode == 0
    buying = ("estimate", "--model", "Qwen/Qwen3-4B", "--instance", "all", "--json", "--top", "99")
    plain, late = (
        {
            offer["node"]["name"]: offer
            for offer in json.loads(run(*buying, *extra).stdout)["offers"]
        }
        for extra in ((), ("--calibration", "late"))
    )
    changed = {name for name in plain if plain[name] != late[name]}
    assert changed
    assert {plain[name]["node"]["device"]["name"] for name in changed} == {"L4"}
    done = run("estimate", "--model", "Qwen/Qwen3-8B", *buying[3:5], "--calibration", "late")
    assert done.returncode == 2
    assert "Qwen3-4B" in done.stderr


def test_calibrations_are_listed_and_removed(run):
    assert "no calibration" in run("calibrate", "--list").stdout
    assert run("calibrate", PUBLISHED, "--name", "l4").returncode == 0
    assert run("calibrate", "--list").stdout.split() == ["l4"]
    assert run("calibrate", "--remove", "l4").returncode == 0
    assert run("calibrate", "--show", "l4").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing to do"),
        (("--show", "none"), "unknown calibration"),
        (("none.jsonl",), "is not there"),
        ((PUBLISHED, "--name", "a/b"), "cannot name"),
    ],
)
def test_bad_input_is_one_clear_line(run, arguments, says):
    done = run("calibrate", *arguments)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((PUBLISHED, "--name", "x", "--list"), "--list and a journal cannot be combined"),
        ((PUBLISHED, "--show", "x"), "--show and a journal cannot be combined"),
        (("--list", "--remove", "x"), "--list and --remove cannot be combined"),
        (("--list", "--name", "x"), "--list and --name cannot be combined"),
    ],
)
def test_one_command_has_one_form(run, arguments, says):
    done = run("calibrate", *arguments)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[0]
    assert "no calibration" in run("calibrate", "--list").stdout


def journal_with(path, *, results=None, lines=None, **metadata):
    """Journal of the published trials with other results or metadata."""
    rows = [json.loads(line) for line in PUBLISHED.read_text().splitlines()[:lines]]
    for row in rows:
        row["results"] |= results or {}
        row["metadata"] |= metadata
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


A100 = {"gpu_type": "A100-80GB", "instance_type": None}


def test_journals_of_two_machines_are_refused_as_those_of_two_models_are(run, tmp_path):
    other = journal_with(tmp_path / "a100.jsonl", **A100)
    for journals in ((PUBLISHED, other), (other, PUBLISHED)):
        done = run("calibrate", *journals)
        assert done.returncode == 2
        assert "the records are of 2 kinds of machine" in done.stderr
    fewer = journal_with(tmp_path / "one.jsonl", gpu_count=1, instance_type=None, lines=1)
    row = json.loads(fewer.read_text())
    row["config"]["server_args"]["tensor_parallel_size"] = 1
    fewer.write_text(json.dumps(row) + "\n")
    assert run("calibrate", fewer, PUBLISHED, "--name", "both").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gpu", "H100", "--num-gpus", "4"), "the records are of L4, not of H100"),
        (("--model", "Qwen/Qwen3-8B"), "the records are of Qwen/Qwen3-4B, not of Qwen/Qwen3-8B"),
    ],
)
def test_what_contradicts_the_records_is_refused(run, arguments, says):
    done = run("calibrate", PUBLISHED, *arguments)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[0]
    assert "no calibration" in run("calibrate", "--list").stdout


def test_a_local_copy_of_the_recorded_model_may_be_stated(run, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    config = load_config("Qwen/Qwen3-4B")
    (folder / "config.json").write_text(json.dumps(config))
    done = run("calibrate", PUBLISHED, "--model", folder, "--name", "copy")
    assert done.returncode == 0, done.stderr


def test_records_that_are_no_anchors_do_not_name_the_machine(run, tmp_path):
    failed = journal_with(tmp_path / "failed.jsonl", **A100, lines=1)
    row = json.loads(failed.read_text()) | {"status": "failed"}
    failed.write_text(json.dumps(row) + "\n")
    assert run("calibrate", failed, PUBLISHED, "--name", "some").returncode == 0


@pytest.mark.parametrize(("count", "status"), [("4", 0), (0, 2)])
def test_a_number_of_devices_may_be_written_as_text(run, tmp_path, count, status):
    written = journal_with(tmp_path / "text.jsonl", gpu_count=count, instance_type=None)
    done = run("calibrate", written, "--name", "text")
    assert done.returncode == status, done.stderr
    assert ("gpu_count is no number of devices" in done.stderr) == bool(status)


def test_what_the_records_do_not_say_is_stated(run, tmp_path):
    unknown = journal_with(
        tmp_path / "u.jsonl", gpu_type="unknown", instance_type=None, model_tag="served-name"
    )
    done = run("calibrate", unknown, *ON_L4)
    assert done.returncode == 0, done.stderr
    assert "the records' model served-name is taken to be Qwen/Qwen3-4B" in done.stderr


@pytest.mark.parametrize("ttft_ms", [0, -3.5])
def test_a_first_token_that_takes_no_time_is_left_out(run, tmp_path, ttft_ms):
    wrong = journal_with(tmp_path / "wrong.jsonl", results={"mean_ttft_ms": ttft_ms}, lines=1)
    done = run("calibrate", wrong)
    assert done.returncode == 2
    assert f"mean_ttft_ms is {ttft_ms:g}" in done.stderr.splitlines()[0]
    done = run("calibrate", wrong, PUBLISHED, "--name", "both", "--json")
    assert done.returncode == 0, done.stderr
    assert f"1 trial is left out: mean_ttft_ms is {ttft_ms:g}" in done.stderr
    assert len(json.loads(done.stdout)["anchors"]) == 3


def test_simulated_trials_are_no_anchors(run):
    tune = (
        "tune",
        "--engine",
        "simulated",
        *ON_L4,
        "--output-json",
        "x.json",
        "--client-args",
        "max_concurrency=2;num_prompts=4",
    )
    assert run(*tune).returncode == 0
    done = run("calibrate", "x.jsonl")
    assert done.returncode == 2
    assert "anchor" in done.stderr


def test_a_calibration_is_not_used_for_another_machine(run):
    assert run("calibrate", PUBLISHED, "--name", "l4").returncode == 0
    done = run("estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "A10G", "--calibration", "l4")
    assert done.returncode == 2
    assert "L4" in done.stderr


def test_trials_of_an_open_loop_are_anchors_at_their_own_number_in_flight(run, tmp_path):
    lines = [json.loads(line) for line in PUBLISHED.read_text(encoding="utf-8").splitlines()]
    for line, law in zip(lines, ("gamma,rate_per_s=4", "all_at_once"), strict=False):
        line["config"]["client_args"]["arrivals"] = f"kind={law}"
    (tmp_path / "open.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tpot_factor(run, tmp_path / "open.jsonl", "--name", "open")
    kept = json.loads(run("calibrate", "--show", "open", "--json").stdout)
    assert len(kept["anchors"]) == len(lines)
    at_a_rate, closed = kept["anchors"][:2]
    results = lines[0]["results"]
    in_flight = results["request_throughput"] * results["mean_e2e_latency_ms"] / 1e3
    assert at_a_rate["anchor"]["place"]["concurrency"] == pytest.approx(in_flight)
    assert closed["anchor"]["place"]["concurrency"] == 64


def client_report(folder, *users, tpot_s=0.012):
    """Reports of concurrent stages as inference-perf writes them (its reportgen/base.py)."""
    folder.mkdir()
    for number, each in enumerate(users):
        latency = {"request_latency": 0.1 + 49 * tpot_s, "time_to_first_token": 0.1}
        latency |= dict.fromkeys(("time_per_output_token", "inter_token_latency"), tpot_s)
        rate = each / latency["request_latency"]
        report = {
            "load_summary": {"count": 10 * each, "requested_rate": 10 * each, "concurrency": each},
            "successes": {
                "count": 10 * each,
                "latency": {name: {"mean": mean, "p99": mean} for name, mean in latency.items()},
                "throughput": {
                    "requests_per_sec": rate,
                    "output_tokens_per_sec": 50 * rate,
                    "input_tokens_per_sec": 200 * rate,
                },
                "prompt_len": {"mean": 200.0, "min": 200.0, "max": 200.0},
                "output_len": {"mean": 50.0, "min": 50.0, "max": 50.0},
            },
            "failures": {"count": 0},
        }
        (folder / f"stage_{number}_lifecycle_metrics.json").write_text(json.dumps(report))
    return folder


def test_the_stages_of_a_load_clients_report_are_anchors(run, tmp_path):
    path = client_report(tmp_path / "reports-1", 4, 16)
    server = ("--server-args", "tensor_parallel_size=4")
    done = run("calibrate", path, *ON_L4, *server, "--json")
    assert done.returncode == 0, done.stderr
    kept = json.loads(done.stdout)
    assert kept["name"] == "reports-1"
    assert [(one["plan"], one["concurrency"]) for one in kept["anchors"]] == [
        ("TP4", 4),
        ("TP4", 16),
    ]
    assert kept["anchors"][0]["anchor"]["measured_tpot_ms"] == pytest.approx(12)
    alone = run("calibrate", path, *ON_L4, "--json")
    assert {one["plan"] for one in json.loads(alone.stdout)["anchors"]} == {"TP1"}
    assert "how the server was started" in alone.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "do not name their model"),
        (("--model", "Qwen/Qwen3-4B"), "do not name their machine"),
        ((*ON_L4, "--server-args", "max_num_seqs=[8,16]"), "has 2 values"),
    ],
)
def test_what_a_report_does_not_say_is_asked_for(run, tmp_path, given, says):
    done = run("calibrate", client_report(tmp_path / "reports-1", 4), *given)
    assert done.returncode == 2
    *_, error, hint = done.stderr.splitlines()
    assert says in error
    assert hint.startswith("hint: ")


def test_a_load_clients_report_has_a_page(run, tmp_path):
    path = client_report(tmp_path / "reports-1", 4)
    done = run("report", path)
    assert done.returncode == 0, done.stderr
    assert (path / "report.html").is_file()
    assert run("calibrate", path, *ON_L4).returncode == 0  # whose own files are still all of it


def test_a_report_without_times_per_token_is_no_anchor(run, tmp_path):
    path = client_report(tmp_path / "reports-1", 4)
    file = path / "stage_0_lifecycle_metrics.json"
    content = json.loads(file.read_text())
    content["successes"]["latency"]["time_per_output_token"] = None
    file.write_text(json.dumps(content))
    done = run("calibrate", path, *ON_L4)
    assert done.returncode == 2
    assert "with a mean time per output token" in done.stderr


def suggested(run, *arguments):
    done = run("calibrate", "--suggest", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_runs_to_measure_are_named_with_what_they_are_worth(run):
    found = suggested(run, *ON_L4)
    named = found["suggested"]
    assert len(named["runs"]) == 2
    assert named["candidates"] > 10
    assert named["doubt_after"] < 0.8 * named["doubt_before"]
    more = suggested(run, *ON_L4, "--runs", "4")["suggested"]
    assert more["doubt_after"] < named["doubt_after"]
    assert more["runs"][:2] == named["runs"]
    assert not any(one["point"]["queued"] for one in more["runs"])


def test_two_precisions_are_both_measured(run):
    choices = ("--quantization", "none", "--quantization", "fp8")
    found = suggested(run, *ON_L4, *choices)["suggested"]["runs"]
    assert {one["plan"]["quantization"] for one in found} == {None, "fp8"}


def test_users_beyond_the_limit_are_not_suggested(run):
    found = suggested(run, *ON_L4, "--max-concurrency", "4", "--runs", "16")["suggested"]
    assert max(one["point"]["concurrency"] for one in found["runs"]) == 4


def test_suggested_commands_are_understood(run, tmp_path):
    """Each run of the commands is one of those named; the last keeps what they measured."""
    found = suggested(run, *ON_L4, "--name", "here", "--quantization", "none")
    *measure, keep = [shlex.split(command) for command in found["commands"]]
    played = 0
    for command in measure:
        assert command[:4] == ["servetune", "tune", "--engine", "vllm"]
        done = run(*command[1:3], "simulated", *command[4:])
        assert done.returncode == 0, done.stderr
        journal = command[-1].replace(".json", ".jsonl")
        played += len((tmp_path / journal).read_text().splitlines())
        assert journal in keep
    assert played == len(found["suggested"]["runs"])
    assert keep[-2:] == ["--name", "here"]


def test_several_journals_make_one_calibration(run, tmp_path):
    lines = PUBLISHED.read_text().splitlines()
    for name, of in (("one", lines[:1]), ("rest", lines[1:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(of) + "\n")
    parts = tpot_factor(run, "one.jsonl", "rest.jsonl", "--name", "parts")
    assert parts == pytest.approx(tpot_factor(run, PUBLISHED, "--name", "whole"))
    assert len(json.loads(run("calibrate", "--show", "parts", "--json").stdout)["anchors"]) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--suggest",), "--model"),
        (("--suggest", PUBLISHED), "--suggest"),
        (("--suggest", "--model", "Qwen/Qwen3-32B", "--gpu", "T4"), "nothing to measure"),
        (("--gpu", "L4"), "--gpu"),
        ((PUBLISHED, "--runs", "3"), "--runs"),
    ],
)
def test_suggestions_that_make_no_sense_are_refused(run, arguments, says):
    done = run("calibrate", *arguments)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[0]


def test_one_anchor_narrows_the_interval_of_a_simulation_at_its_place(run, tmp_path):
    (tmp_path / "one.jsonl").write_text(PUBLISHED.read_text().splitlines()[0] + "\n")
    tpot_factor(run, tmp_path / "one.jsonl", "--name", "one")
    load = ("--input-len", "220", "--output-len", "200", "--tensor-parallel", "4", "-n", "300")

    def width(users, *more):
        done = run("simulate", *ON_L4, *load, "-c", str(users), *more, "--json")
        assert done.returncode == 0, done.stderr
        interval = json.loads(done.stdout)["interval"]
        return interval["high_factor"] / interval["low_factor"]

    near, far = (width(users, "--calibration", "one") for users in (32, 1))
    assert near < 0.7 * min(far, width(32))

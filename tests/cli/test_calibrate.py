import json
from pathlib import Path

import pytest

PUBLISHED = Path(__file__).parents[2] / "examples/published/qwen3-4b-4xl4.jsonl"
ON_L4 = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--num-gpus", "4")


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
    assert min(1, *ratios) <= factor <= max(1, *ratios)

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
    assert (changed < 1) == (factor < 1)
    assert corrected["metadata"]["calibration"] == "l4"
    truth = json.loads(PUBLISHED.read_text().splitlines()[0])["results"]["mean_tpot_ms"]
    assert abs(corrected["results"]["mean_tpot_ms"] - truth) < abs(
        plain["results"]["mean_tpot_ms"] - truth
    )


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

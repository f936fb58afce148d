import csv
import json
import math

import pytest

from servetune.api.estimate_results import predict_file
from servetune.errors import PlanError
from servetune.prediction import tables

HEAD = "id,engine,model,gpu,precision_weights,isl,osl,concurrency,tp,dp,moe_ep,mine"
GOOD = "a,vllm,Qwen/Qwen3-8B,h100_sxm,bf16,1024,256,16,1,1,1,kept"


@pytest.fixture
def servetune(called):
    return called


@pytest.fixture
def predict(servetune, tmp_path):
    def run(*rows, head=HEAD, options=()):
        (tmp_path / "rows.csv").write_text("\n".join([head, *rows]) + "\n")
        done = servetune("estimate", "--batch", "rows.csv", "--out", "out.csv", *options)
        if done.returncode == 2:
            return done
        with (tmp_path / "out.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    return run


def test_a_row_is_answered_with_its_own_columns_kept(predict):
    (row,) = predict(GOOD)
    assert row["mine"] == "kept"
    assert row["error"] == ""
    assert row["fits"] == "true"
    ttft, tpot, e2e = (float(row[name]) for name in ("ttft_ms", "tpot_ms", "e2e_ms"))
    assert e2e == pytest.approx(ttft + 255 * tpot, rel=1e-4)
    assert float(row["tpot_low_ms"]) < tpot < float(row["tpot_high_ms"])
    assert float(row["ttft_low_ms"]) < ttft < float(row["ttft_high_ms"])
    assert 3 < tpot < 20  # 16 GB of weights at 3.35 TB/s are 4.9 ms; nothing is faster


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (GOOD.replace("h100_sxm", "h900"), "h900"),
        (GOOD.replace("Qwen/Qwen3-8B", "no/such-model"), "no/such-model"),
        (GOOD.replace("bf16", "fp3"), "fp3"),
        (GOOD.replace(",16,", ",zero,"), "concurrency must be a number"),
        (GOOD.replace(",1024,", ",-5,"), "isl must be a number"),
        (GOOD.replace(",1024,", ",nan,"), "isl must be a number"),
        ("short", ""),
    ],
)
def test_one_bad_row_has_its_reason_and_stops_nothing(predict, bad, says):
    first, second = predict(bad, GOOD)
    assert first["error"]
    assert says in first["error"]
    assert first["tpot_ms"] == ""
    assert second["error"] == ""
    assert float(second["tpot_ms"]) > 0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (GOOD.replace("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-405B"), "would fit"),
        (GOOD.replace(",16,1,1", ",16,3,1"), "32 attention heads do not divide"),
        (GOOD.replace(",1024,", ",100000,"), "is more than Qwen/Qwen3-8B was made for"),
    ],
)
def test_what_we_say_cannot_run_is_priced_and_says_why(predict, row, says):
    (answer,) = predict(row)
    assert answer["fits"] == "false"
    assert says in answer["error"]
    assert float(answer["tpot_ms"]) > 0


MOE = "m,vllm,MiniMaxAI/MiniMax-M2.5,h200_sxm,fp8,1024,1024,32,8,1,1,kept"


def test_experts_that_do_not_divide_are_read_as_whole_ones(predict):
    cut, whole, fitting = predict(
        MOE, MOE.replace(",8,1,1,kept", ",8,1,8,kept"), MOE.replace(",8,1,1", ",4,1,1")
    )
    assert (cut["fits"], cut["error"]) == ("true", "")
    assert "expert parallelism" in cut["assumed"]
    assert cut["tpot_ms"] == whole["tpot_ms"]
    assert whole["assumed"] == fitting["assumed"] == ""


def test_a_network_without_experts_spreads_none(predict):
    plain, told = predict(GOOD, GOOD.replace(",1,1,1,", ",1,1,8,"))
    assert (told["fits"], told["error"]) == ("true", "")
    assert told["tpot_ms"] == plain["tpot_ms"]
    assert "the network has no experts" in told["assumed"]
    assert plain["assumed"] == ""


def test_a_checkpoint_without_a_configuration_is_read_as_its_origin(predict, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plain, named, word = predict(
        GOOD.replace(",bf16,", ",,"),
        GOOD.replace("Qwen/Qwen3-8B,h100_sxm,bf16", "RedHatAI/Qwen3-8B-FP8-dynamic,h100_sxm,"),
        GOOD.replace(",bf16,", ",fp8,"),
    )
    assert named["error"] == ""
    assert "read as Qwen/Qwen3-8B stored in fp8" in named["assumed"]
    assert float(named["tpot_ms"]) < float(plain["tpot_ms"])
    assert named["tpot_ms"] == word["tpot_ms"]


def test_an_engine_is_given_the_memory_that_it_was_run_with(predict):
    row = "d,sglang,deepseek-ai/DeepSeek-R1,b200_sxm,fp8,8192,1024,16,4,1,1,kept"
    tight, roomy = predict(row, row.replace(",4,1,1", ",8,1,1"))
    assert (tight["fits"], tight["error"]) == ("true", "")
    assert "share of memory 0.95" in tight["assumed"]
    assert "share of memory" not in roomy["assumed"]


def test_settings_of_a_benchmark_apply_where_it_is_named_and_are_reported(predict):
    row = "d,sglang,deepseek-ai/DeepSeek-R1,b200_sxm,fp8,8192,1024,16,8,1,1,kept"
    (plain,) = predict(row)
    assert plain["assumed"] == ""
    known, unknown = predict(
        row, row.replace("8192,1024", "8000,1024"), options=("--convention", "inferencemax")
    )
    assert float(known["tpot_ms"]) < float(plain["tpot_ms"])
    assert "2 tokens drafted ahead" in known["assumed"]
    assert "held back for 15 steps" in known["assumed"]
    assert unknown["assumed"] == ""


def test_a_plan_that_we_say_cannot_run_still_has_a_cache(predict):
    row = "c,vllm,Qwen/Qwen3-8B,h100_sxm,bf16,30000,1000,512,3,1,1,kept"
    odd, even = predict(row, row.replace(",3,1,1", ",4,1,1"))
    assert (odd["fits"], even["fits"]) == ("false", "true")
    # 512 of 31,000 tokens are far more than three devices hold: most requests wait.
    assert float(odd["ttft_ms"]) > float(even["ttft_ms"]) > 10_000


def test_any_number_of_users_fits(predict):
    few, many, most = predict(
        *(GOOD.replace(",16,1", f",{users},1") for users in (16, 4096, 10**7))
    )
    for row in (few, many, most):
        assert (row["fits"], row["error"]) == ("true", "")
    ttft_ms = [float(row["ttft_ms"]) for row in (few, many, most)]
    assert ttft_ms == sorted(ttft_ms)


def test_four_bits_without_kernels_are_priced_for_experts_too(predict):
    (row,) = predict(MOE.replace("fp8", "int4_wo"))
    assert row["error"] == ""
    assert float(row["tpot_ms"]) > 0


@pytest.mark.parametrize(
    ("mode", "says"),
    [("agg", ""), ("", ""), ("disagg", "compute prompts"), ("odd", "mode odd is not known")],
)
def test_a_mode_that_the_law_cannot_play_is_reported(predict, mode, says):
    head = HEAD.replace(",mine", ",mode")
    plain, row = predict(GOOD.replace("kept", "agg"), GOOD.replace("kept", mode), head=head)
    assert row["error"] == ""
    assert row["tpot_ms"] == plain["tpot_ms"]
    assert says in row["assumed"]
    assert bool(says) == bool(row["assumed"])


def test_a_table_without_its_columns_is_refused_before_anything_is_written(predict, tmp_path):
    done = predict("x", head="model")
    assert done.returncode == 2
    assert "no column gpu, isl, osl, concurrency" in done.stderr
    assert not (tmp_path / "out.csv").exists()


def test_the_shared_measurements_are_predicted_and_mostly_close(shared, servetune, tmp_path):
    done = servetune(
        "estimate",
        "--batch",
        shared / "data/silicon_dev.csv",
        "--out",
        "out.csv",
        "--models",
        shared / "data/model_configs",
        "--convention",
        "inferencemax",
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open(newline="") as file:
        predicted = {row["id"]: row for row in csv.DictReader(file)}
    with (shared / "data/silicon_dev.csv").open(newline="") as file:
        truths = {row["id"]: float(row["tpot_ms"]) for row in csv.DictReader(file)}
    assert predicted.keys() == truths.keys()
    errors = sorted(
        abs(float(row["tpot_ms"]) / truths[name] - 1)
        for name, row in predicted.items()
        if not row["error"]
    )
    assert len(errors) == len(truths)
    assert errors[len(errors) // 2] < 0.12


def test_a_row_that_cannot_be_priced_leaves_the_others_theirs(tmp_path, monkeypatch):
    priced = tables.predict_runs

    def picky(runs, calibrations=None):
        if any(run.concurrency == 13 for run in runs):
            raise PlanError("thirteen")
        return priced(runs, calibrations)

    monkeypatch.setattr(tables, "predict_runs", picky)
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_text("\n".join([HEAD, GOOD, GOOD.replace(",16,", ",13,")]) + "\n")
    predict_file(source, out, tables.TableOptions())
    with out.open(newline="") as file:
        good, bad = csv.DictReader(file)
    assert (good["error"], bad["error"]) == ("", "thirteen")
    assert float(good["tpot_ms"]) > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column model, gpu"),
        ("model;gpu;isl;osl;concurrency\na;b;1;1;1\n", "separate columns by commas"),
        ("Model,gpu,isl,osl,concurrency\na,b,1,1,1\n", "small letters"),
        ("model,gpu,isl,isl,osl,concurrency\na,b,1,2,1,1\n", "several columns isl"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_clear_line(servetune, tmp_path, text, says):
    (tmp_path / "rows.csv").write_text(text)
    done = servetune("estimate", "--batch", "rows.csv", "--out", "out.csv")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_table_is_not_overwritten_by_its_own_predictions(servetune, tmp_path):
    (tmp_path / "rows.csv").write_text(f"{HEAD}\n{GOOD}\n")
    done = servetune("estimate", "--batch", "rows.csv", "--out", tmp_path / "rows.csv")
    assert done.returncode == 2
    assert (tmp_path / "rows.csv").read_text() == f"{HEAD}\n{GOOD}\n"


def test_spreadsheets_marks_line_ends_and_quotes_are_read(servetune, tmp_path):
    head = HEAD.replace("model,gpu", '" model","gpu"')
    row = GOOD.replace("kept", '"a, ""b"""')
    (tmp_path / "rows.csv").write_bytes(f"\ufeff{head}\r\n{row}\r\n".encode())
    done = servetune("estimate", "--batch", "rows.csv", "--out", "out.csv")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open(newline="") as file:
        (answer,) = csv.DictReader(file)
    assert (answer["error"], answer["mine"]) == ("", 'a, "b"')


def test_cells_without_a_column_are_the_rows_own_fault(predict):
    bad, good = predict(f"{GOOD},more", GOOD)
    assert "more cells than the table has columns" in bad["error"]
    assert good["error"] == ""


def test_a_table_without_one_prediction_has_a_status_of_its_own(servetune, predict, tmp_path):
    predict(GOOD.replace("h100_sxm", "l40x"))
    again = ("estimate", "--batch", "rows.csv", "--out", "out.csv", "--json")
    done = servetune(*again)
    assert done.returncode == 1
    [row] = json.loads(done.stdout)["rows"]
    assert "l40x" in row["error"]


def test_an_unknown_gpu_has_the_nearest_names(predict):
    (row,) = predict(GOOD.replace("h100_sxm", "l40x"))
    assert "did you mean" in row["error"]
    assert "L40S" in row["error"]


@pytest.fixture
def predict_beside(servetune, tmp_path):
    """Rows beside measured ones, which have the columns of a prediction."""

    def run(rows, anchors, *, head=HEAD + ",ttft_ms,tpot_ms", extra=()):
        (tmp_path / "rows.csv").write_text("\n".join([HEAD, *rows]) + "\n")
        (tmp_path / "measured.csv").write_text("\n".join([head, *anchors]) + "\n")
        named = ("--batch", "rows.csv", "--out", "out.csv", "--anchors", "measured.csv")
        done = servetune("estimate", *named, *extra)
        if done.returncode:
            return done
        with (tmp_path / "out.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    return run


def times(row):
    return float(row["ttft_ms"]), float(row["tpot_ms"])


def test_measured_rows_correct_those_that_are_like_them_most(predict, predict_beside):
    near = GOOD.replace(",16,", ",32,")
    far = GOOD.replace("bf16", "fp8").replace(",16,", ",256,")
    other_gpu = GOOD.replace("h100_sxm", "h200_sxm")
    rows = (GOOD, near, far, other_gpu)
    plain = predict(*rows)
    ttft, tpot = times(plain[0])
    measured = f"{GOOD},{1.5 * ttft},{1.3 * tpot}"
    found = predict_beside(rows, [measured])
    by_ttft, by_tpot = zip(
        *(
            [new / old for new, old in zip(times(one), times(other), strict=True)]
            for one, other in zip(found, plain, strict=True)
        ),
        strict=True,
    )
    assert 1.1 < by_tpot[0] < 1.3
    assert by_tpot[0] > by_tpot[1] > by_tpot[2] > 1.0
    assert 1.2 < by_ttft[0] < 1.5
    assert found[3] == plain[3]


def test_anchors_correct_open_loops_where_their_rate_has_them(servetune, tmp_path):
    head = "model,gpu,engine,isl,osl,concurrency,rate,protocol,requests"
    rows = [f"Qwen/Qwen3-8B,H100,vllm,1024,512,{n},{rate},open,1000" for n, rate in
            ((50, 1), (1, 1), ("", 8))]  # fmt: skip
    (tmp_path / "rows.csv").write_text("\n".join([head, *rows]) + "\n")

    def predicted(*more):
        done = servetune("estimate", "--batch", "rows.csv", "--out", "out.csv", *more)
        assert done.returncode == 0, done.stderr
        with (tmp_path / "out.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        return [(float(row["tpot_ms"]), float(row["output_tokens_per_s"])) for row in found]

    plain = predicted()
    for factor in (0.7, 1.4):
        anchor = f"{rows[2]},{factor * plain[2][0]}"
        (tmp_path / "measured.csv").write_text(f"{head},tpot_ms\n{anchor}\n")
        found = predicted("--anchors", "measured.csv")
        assert found[0] == found[1]  # whatever its column says of a number in flight
        moves = [abs(math.log(new / old)) for (new, _), (old, _) in zip(found, plain, strict=True)]
        assert moves[2] > moves[0] > 0
        for (_, rate), (_, before), asked in zip(found, plain, (1, 1, 8), strict=True):
            assert rate == pytest.approx(before, rel=0.03)  # what is asked for is served
            assert rate <= 512 * asked


def test_two_anchors_narrow_the_interval_and_one_time_may_be_missing(predict, predict_beside):
    (plain,) = predict(GOOD)
    ttft, tpot = times(plain)
    anchors = [f"{GOOD},,{tpot}", f"{GOOD.replace(',16,', ',8,')},{ttft},{0.9 * tpot}"]
    (found,) = predict_beside([GOOD], anchors)
    spread = [float(r["ttft_high_ms"]) / float(r["ttft_low_ms"]) for r in (plain, found)]
    assert spread[1] < spread[0]


@pytest.mark.parametrize(
    ("anchor", "says"),
    [
        (f"{GOOD},,", "neither ttft_ms nor tpot_ms"),
        (f"{GOOD},-3,5", "ttft_ms must be a positive number"),
        (f"{GOOD.replace('h100_sxm', 'h900')},100,5", "h900"),
        (f"{GOOD},180000,9000000", "divide those in microseconds by 1000"),
        (f"{GOOD},0.1,0.005", "less than a hundredth of the predicted"),
    ],
)
def test_an_anchor_that_cannot_serve_stops_everything(predict_beside, anchor, says):
    done = predict_beside([GOOD], [f"{GOOD},100,5", anchor])
    assert done.returncode == 2
    assert "anchor 2" in done.stderr
    assert says in done.stderr


def test_anchors_go_with_a_table_and_not_with_a_calibration(servetune, predict_beside, tmp_path):
    done = servetune("estimate", "--model", "Qwen/Qwen3-8B", "--gpu", "L4", "--anchors", "x.csv")
    assert done.returncode == 2
    assert "--batch" in done.stderr
    done = predict_beside([GOOD], [f"{GOOD},100,5"], extra=("--calibration", "none"))
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("make", "says", "hint"),
    [
        (lambda _: None, "is not there", "give the path of a table"),
        (lambda path: path.mkdir(), "is a folder", "a table (.csv) that is in it"),
        (
            lambda path: path.write_text(f"{HEAD}\n{GOOD.replace('kept', 'x' * 131_073)}\n"),
            "has more than 131,072 characters",
            "a quotation mark",
        ),
        (lambda path: path.write_text(f"{HEAD}\n"), "has no rows", "add a row"),
        (lambda path: path.write_bytes(HEAD.encode("utf-16")), "cannot read", "in UTF-8"),
    ],
)
@pytest.mark.parametrize("option", ["--batch", "--anchors"])
def test_a_table_that_cannot_be_read_says_what_is_wrong_with_it(
    servetune, tmp_path, make, says, hint, option
):
    make(tmp_path / "rows.csv")
    (tmp_path / "good.csv").write_text(f"{HEAD}\n{GOOD}\n")
    tables_of = {"--batch": "good.csv", option: "rows.csv"}
    named = [word for pair in tables_of.items() for word in pair]
    done = servetune("estimate", *named, "--out", "out.csv")
    assert done.returncode == 2
    error, help_line = done.stderr.splitlines()
    assert says in error
    assert hint in help_line
    assert not (tmp_path / "out.csv").exists()

"""The options of `estimate` that draw, ask somebody else, or choose a service."""

import csv
import importlib.util
import json
import re
import shlex

import msgspec
import pytest

import servetune as st
from servetune.api.wording import legend_text, rows_text
from servetune.errors import InputError
from servetune.models import load_config
from servetune.report.dashboard.page import page_data_in

ON_H100 = ("estimate", "--model", "Qwen/Qwen3-8B", "--gpu", "H100")
INSTALLED = importlib.util.find_spec("aiconfigurator") is not None
REASON = "aiconfigurator is not installed: pip install 'servetune[aiconfigurator]'"


@pytest.fixture
def servetune(called):
    return called


def data(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_parts_of_each_step_add_up(servetune):
    roofline = data(servetune(*ON_H100, "--json"))["chosen"]["answer"]["roofline"]
    for phase in ("prefill", "decode", "decode_at_best"):
        parts = roofline[phase]["parts"]
        assert sum(part["time_ms"] for part in parts) == pytest.approx(roofline[phase]["step_ms"])
        assert {"attention", "matrices", "engine"} <= {part["kind"] for part in parts}


def test_the_text_says_which_operations_bind(servetune):
    done = servetune(*ON_H100)
    assert done.returncode == 0, done.stderr
    roofline = done.stdout.split("Roofline")[1].split("Concurrency limits")[0]
    assert "gate and up" in roofline
    assert "(compute)" in roofline
    assert "(memory)" in roofline


def figures_of(path):
    return page_data_in(path.read_text())["figures"]


def test_a_plot_is_a_page_with_the_operations_and_the_curves(servetune, tmp_path):
    done = servetune(*ON_H100, "--plot", "plan.html")
    assert done.returncode == 0, done.stderr
    roofline = figures_of(tmp_path / "plan.html")["roofline"]
    assert roofline["device"] == "H100"
    assert {"dtype": "bf16", "flops_per_s": pytest.approx(989e12, rel=0.01)} in roofline["roofs"]
    dots = {(dot["phase"], dot["name"]): dot for dot in roofline["dots"]}
    for phase in ("prefill", "decode"):
        dot = dots[phase, "gate and up"]
        assert dot["flops_per_s"] <= min(
            989.4e12, dot["flops_per_byte"] * roofline["memory_bytes_per_s"]
        )
    for bar in roofline["bars"]:
        assert sum(part["share_fraction"] for part in bar["slices"]) == pytest.approx(1, rel=1e-3)
        assert sum(part["time_ms"] for part in bar["slices"]) == pytest.approx(
            bar["time_ms"], rel=1e-3
        )
    assert [curve["title"] for curve in roofline["curves"]] == ["TTFT", "ITL", "Output throughput"]
    for curve in roofline["curves"]:
        assert all(0 < p["low"] < p["value"] < p["high"] for p in curve["points"])
        users = [point["concurrency"] for point in curve["points"]]
        assert roofline["chosen_concurrency"] in users
        assert roofline["knee_concurrency"] in users


def test_answers_of_one_token_have_no_gaps_to_draw(servetune, tmp_path):
    asked = (*ON_H100, "--output-len", "1", "--constraints", "ttft<=500ms")
    done = servetune(*asked, "--plot", "plan.html")
    assert done.returncode == 0, done.stderr
    assert "0.00 ms" not in done.stdout
    assert "ITL 0.0" not in done.stdout
    curves = figures_of(tmp_path / "plan.html")["roofline"]["curves"]
    assert [curve["title"] for curve in curves] == ["TTFT", "Output throughput"]


def test_a_plot_of_machines_has_the_cost_of_each(servetune, tmp_path):
    asked = ("--model", "Qwen/Qwen3-8B", "--instance", "all", "--constraints", "itl<=40ms")
    done = servetune("estimate", *asked, "--plot", "machines.html", "--json")
    assert done.returncode == 0, done.stderr
    cheapest = data(done)["offers"][0]
    machines = figures_of(tmp_path / "machines.html")["machines"]
    cost = cheapest["best"]["cost_per_million_tokens_usd"]
    assert machines[0]["cost"] == pytest.approx(cost, rel=2e-4)  # four digits
    assert machines[0]["low"] < machines[0]["cost"] < machines[0]["high"]
    able = [each for each in machines if each["cost"] is not None]
    assert [each["cost"] for each in able] == sorted(each["cost"] for each in able)
    unable = [each for each in machines if each["cost"] is None]
    assert all(each["missed"] for each in unable)


def test_the_curve_of_the_plot_is_in_the_data(servetune):
    found = data(servetune(*ON_H100, "--json"))
    users = [point["concurrency"] for point in found["curve"]]
    assert users == sorted(users)
    assert found["chosen"]["answer"]["best_throughput"] in found["curve"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--plot", "plan.png"), "does not end in .html"),
        (("--plot", "plan.svg"), "saves each figure as SVG"),
        (("--plot", "plan.html", "--sweep"), "--plot has no effect on a sweep"),
        (("--estimator", "both", "--sweep"), "--estimator has no effect on a sweep"),
        (("--out", "plan.csv"), "--out has no effect on one plan"),
        (("--top", "3"), "--top has no effect on one plan"),
        (("--instance", "ml.g6.xlarge"), "both name the machine"),
        (("--estimator", "magic"), "magic"),
        (("--service", "azure"), "azure"),
    ],
)
def test_options_that_cannot_be_meant_are_one_clear_line(servetune, tmp_path, arguments, says):
    done = servetune(*ON_H100, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert not list(tmp_path.glob("plan.*"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--batch", "rows.csv", "--out", "plan.csv", "--sweep"), "not from --sweep"),
        (("--batch", "rows.csv", "--out", "plan.csv", "--gpu", "L4"), "not from --gpu"),
        (("--gpu", "all", "--price-per-hour", "1"), "machines have prices of their own"),
        (("--gpu", "all", "--target", "latency"), "add --sweep"),
        (("--gpu", "all", "--instance", "ml.g6.xlarge"), "both name machines"),
        (("--instance", "all", "--gpu", "L40Z"), "unknown GPU 'l40z'"),
        (("--instance", "all", "--num-gpus", "3"), "no machine to compare has 3"),
        (("--gpu", ""), "the machine's name is empty"),
        (("--gpu", " "), "the machine's name is empty"),
        (("--instance", ""), "the machine's name is empty"),
    ],
)
def test_no_option_is_silently_passed_over(servetune, tmp_path, arguments, says):
    (tmp_path / "rows.csv").write_text("model,gpu,isl,osl,concurrency\n")
    done = servetune("estimate", *(() if "--batch" in arguments else ON_H100[1:3]), *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert not list(tmp_path.glob("plan.*"))


def test_one_gpu_has_the_price_of_the_service_that_is_asked_for(servetune):
    def usd(*arguments):
        done = servetune("estimate", "--model", "Qwen/Qwen3-4B", *arguments, "--json")
        node = data(done)["node"]
        return node["price"] and node["price"]["usd_per_hour"]

    l4 = ("--gpu", "L4")
    assert usd(*l4) is None  # a machine of one's own
    assert usd(*l4, "--service", "ec2") < usd(*l4, "--service", "sagemaker")
    assert usd(*l4, "--service", "all") == usd(*l4, "--service", "ec2")
    named = usd("--instance", "ml.g6.xlarge", "--service", "ec2")
    assert named == usd("--instance", "g6.xlarge")


def test_services_are_compared_alone_and_together(servetune):
    def names(service):
        found = servetune(
            *ON_H100[:3], "--instance", "all", "--service", service, "--top", "999", "--json"
        )
        return {offer["node"]["name"] for offer in data(found)["offers"]}

    sagemaker, ec2, both = names("sagemaker"), names("ec2"), names("all")
    assert all(name.startswith("ml.") for name in sagemaker)
    assert ec2
    assert not any(name.startswith("ml.") for name in ec2)
    assert both == sagemaker | ec2


def test_numbers_of_gpus_have_the_price_of_the_service(servetune):
    def l4(service):
        asked = ("--gpu", "all", "--num-gpus", "1", "--service", service, "--top", "999", "--json")
        offers = data(servetune("estimate", "--model", "Qwen/Qwen3-4B", *asked))["offers"]
        return next(o["node"]["price"] for o in offers if o["node"]["name"] == "1x L4")

    hosted, rented = l4("sagemaker"), l4("ec2")
    assert rented["usd_per_hour"] < hosted["usd_per_hour"]
    assert hosted["source"].startswith("ml.")
    assert l4("all") == rented


def test_prices_name_their_list_and_day(servetune):
    done = servetune(*ON_H100[:3], "--instance", "all", "--service", "all", "--top", "20")
    prices = " ".join(done.stdout.split()).split("prices: ")[1:]
    assert len(prices) >= 2
    assert all(line.startswith("AWS ") and ", read 20" in line for line in prices)


@pytest.mark.skipif(INSTALLED, reason="aiconfigurator is installed")
def test_a_second_opinion_names_the_command_that_installs_it(servetune, tmp_path):
    (tmp_path / "rows.csv").write_text("model,gpu,isl,osl,concurrency\n")
    for asked in (ON_H100, ("estimate", "--batch", "rows.csv", "--out", "out.csv")):
        done = servetune(*asked, "--estimator", "aiconfigurator")
        assert done.returncode == 2
        assert "pip install 'servetune[aiconfigurator]'" in done.stderr
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.skipif(not INSTALLED, reason=REASON)
def test_both_predictions_are_side_by_side(servetune):
    done = servetune(*ON_H100, "--estimator", "both")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.split("Second opinion")[1]
    whose = [line.split()[1] for line in rows.splitlines() if line.strip()[:1].isdigit()]
    assert whose == ["servetune", "aiconfigurator"] * (len(whose) // 2)
    assert len(whose) >= 4
    assert "NVIDIA's prediction by aiconfigurator 0.12" in rows
    found = data(servetune(*ON_H100, "--estimator", "both", "--json"))["second_opinion"]
    assert found[0]["ours"]["concurrency"] == 1
    assert all(one["theirs"]["ttft_ms"] > 0 for one in found)


@pytest.mark.skipif(not INSTALLED, reason=REASON)
def test_a_table_gets_its_answers_beside_ours(servetune, tmp_path):
    rows = "model,gpu,isl,osl,concurrency\nQwen/Qwen3-8B,H100,512,128,8\n"
    (tmp_path / "rows.csv").write_text(rows + "Qwen/Qwen3-8B,L4,512,128,8\n")
    done = servetune("estimate", "--batch", "rows.csv", "--out", "o.csv", "--estimator", "both")
    assert done.returncode == 0, done.stderr
    known, unknown = csv.DictReader((tmp_path / "o.csv").read_text().splitlines())
    assert 0.3 < float(known["aiconfigurator_tpot_ms"]) / float(known["tpot_ms"]) < 3
    assert known["aiconfigurator_error"] == ""
    assert unknown["tpot_ms"]
    assert unknown["aiconfigurator_tpot_ms"] == ""
    assert "no table of the GPU L4" in unknown["aiconfigurator_error"]


def test_drafts_are_priced_and_their_acceptance_is_reported(servetune):
    plain = data(servetune(*ON_H100, "--json"))["chosen"]["answer"]
    drafts = ("--draft-tokens", "3", "--draft-method", "ngram", "--draft-acceptance", "0.8")
    drafted = data(servetune(*ON_H100, *drafts, "--json"))["chosen"]["answer"]
    gained = 1 + 0.8 + 0.8**2 + 0.8**3
    alone = plain["best_latency"]["itl_ms"] / drafted["best_latency"]["itl_ms"]
    assert 0.8 * gained < alone < gained
    assert any(f"{gained:.2f} tokens gained" in note for note in drafted["notes"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--draft-tokens", "0"), "draft-tokens"),
        (("--draft-tokens", "2", "--draft-acceptance", "1.5"), "draft-acceptance"),
        (("--draft-acceptance", "0.5"), "give their number with draft_tokens"),
    ],
)
def test_drafts_that_cannot_be_are_one_clear_line(servetune, arguments, says):
    done = servetune(*ON_H100, *arguments)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--draft-tokens", "100000"), "not in the range"),
        (("--draft-tokens", "2", "--draft-method", "eagel"), "did you mean eagle"),
    ],
)
def test_drafts_that_no_engine_knows_are_refused(servetune, arguments, says):
    done = servetune(*ON_H100, *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_commands_carry_all_that_the_plan_chose(servetune, tmp_path):
    chosen = ("--draft-tokens", "3", "--draft-method", "ngram", "--draft-acceptance", "0.5")
    stored = ("--quantization", "fp8", "--max-model-len", "4096")
    limits = ("--constraints", "e2e_latency:p99<=60s")
    done = servetune(*ON_H100, *chosen, *stored, *limits, "--json")
    commands = data(done)["tune_commands"]
    for name in ("simple", "advanced", "simulated"):
        for said in ("num_speculative_tokens", "ngram", "quantization=fp8", "max_model_len=4096"):
            assert said in commands[name]
        assert "tensor_parallel_size=1;" in commands[name]
    drafting = shlex.split(commands["drafting"])
    assert drafting[:2] == ["servetune", "simulate"]
    played = data(servetune(*drafting[1:], "--json"))
    assert played["status"] == "ok"
    assert played["results"]["p99_e2e_latency_ms"] > 0
    said = servetune(*ON_H100, *chosen, *limits).stdout
    assert "concurrency " in said.split("Under the constraints")[1]  # simulated at once


HEADLESS = ("--draft-tokens", "3", "--draft-method", "eagle3")


def test_drafts_by_a_head_without_a_name_are_estimated_but_not_tuned(servetune):
    done = servetune(*ON_H100, *HEADLESS, "--json")
    assert list(data(done)["tune_commands"]) == ["drafting"]
    assert "no server can be tuned until --server-args name the checkpoint" in done.stderr
    assert data(servetune(*ON_H100, *HEADLESS, "--sweep", "--json"))["ranked"]
    head = 'speculative_config={"method":"eagle3","model":"a/b","num_speculative_tokens":3}'
    named = servetune(*ON_H100, "--server-args", head, "--json")
    assert "without effect" not in named.stderr
    assert head in data(named)["tune_commands"]["simple"]
    for each in (done, named):
        simulated = shlex.split(data(each)["tune_commands"]["drafting"])[1:]
        assert data(servetune(*simulated, "--json"))["status"] == "ok"


def test_whole_experts_are_told_to_the_engine(servetune):
    found = data(
        servetune(
            "estimate",
            *("--model", "MiniMaxAI/MiniMax-M2.5", "--gpu", "H200", "--num-gpus", "8"),
            *("--tensor-parallel", "8", "--json"),
        )
    )
    assert found["chosen"]["plan"]["expert_parallel"] is True
    assert "enable_expert_parallel=true" in found["tune_commands"]["simple"]


def test_intervals_are_reported_in_few_digits(servetune):
    said = servetune(*ON_H100).stdout.split("within a factor of ")[1].split(",")[0].split(" to ")
    assert all(len(number.replace(".", "").lstrip("0")) <= 3 for number in said)


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "--gpu", "L4"),
        ("estimate", "--gpu", "L4", "--sweep"),
        ("estimate", "--gpu", "all"),
        ("simulate", "--gpu", "L4", "-c", "4"),
        ("simulate", "--serve", "--gpu", "L4"),
    ],
)
def test_a_storage_that_the_checkpoint_lacks_is_refused_by_every_verb(servetune, words):
    model = ("Qwen/Qwen3-8B",) if "--serve" in words else ("--model", "Qwen/Qwen3-8B")
    done = servetune(*words, *model, "--quantization", "awq")
    assert done.returncode != 0
    assert "Qwen/Qwen3-8B-AWQ" in done.stderr


def test_hints_of_an_estimate_and_a_sweep_name_the_same_checkpoint(servetune):
    for words in ((), ("--sweep",)):
        done = servetune("estimate", "--model", "Qwen/Qwen3-32B", "--gpu", "L4", *words)
        assert "the model Qwen/Qwen3-32B-AWQ" in done.stderr
        assert "tensor_parallel 4 on 4 such devices" in done.stderr
        assert "quantization awq" not in done.stderr


def test_a_rate_is_shown_with_the_users_it_keeps_in_flight() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "H100", "num_gpus": 1}
    found = st.estimate(**asked, rate=5)
    assert "steady state" not in str(found)
    assert "keep users in step" not in str(found)
    assert "keep users in step" in str(st.estimate(**asked, concurrency=8))
    assert all("request_rate=[2.5,5,7.5]" in words for words in found.tune_commands.values())
    users = found.load_names["at 5 requests/s"]
    (point,) = [point for point in found.curve if point.concurrency == users]
    assert point.requests_per_s >= 5
    assert users == pytest.approx(5 * point.e2e_ms / 1e3, rel=0.05)  # Little's law
    assert f"{users:>6} " in str(found)
    assert "1024 in, 512 out" in str(found)
    assert found.to_json()["in_flight"] == pytest.approx(5 * point.e2e_ms / 1e3)
    assert found.to_json()["rate_per_s"] == 5
    run = st.simulate(**asked, rate=5, requests=300, input_tokens=1024, output_tokens=512)
    assert point.ttft_ms == pytest.approx(run.record.results["mean_ttft_ms"], rel=0.1)
    assert point.e2e_ms == pytest.approx(run.record.results["mean_e2e_latency_ms"], rel=0.05)
    with pytest.raises(InputError, match="more than TP1") as refused:
        st.estimate(**asked, rate=500)
    assert "--rate" in refused.value.hint
    with pytest.raises(InputError, match="both say how many"):
        st.estimate(**asked, rate=5, concurrency=3)
    with pytest.raises(InputError, match="no effect on a sweep"):
        st.estimate(**asked, rate=5, sweep=True)


def test_a_low_rate_costs_what_it_serves_and_has_the_interval_of_open_loops() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "H100", "num_gpus": 1, "price_per_hour_usd": 4.0}
    found = st.estimate(**asked, rate=0.05)
    (said,) = re.findall(r"\$([\d.]+) per million output tokens", " ".join(str(found).split()))
    assert float(said) == pytest.approx(4 / 3600 / (0.05 * 512) * 1e6, rel=0.02)
    run = st.simulate(**asked, rate=0.05, requests=20, input_tokens=1024, output_tokens=512)
    [interval] = found.intervals[:1]
    assert interval.low_factor == pytest.approx(run.interval.low_factor, rel=1e-6)
    assert interval.high_factor == pytest.approx(run.interval.high_factor, rel=1e-6)


@pytest.mark.parametrize(
    ("shared", "prompt", "engine"),
    [
        ({"shared_prefix_tokens": 900}, 1000, "vllm"),
        ({"distinct_prompts": 5}, 1000, "vllm"),
        ({"shared_prefix_tokens": 3800}, 4000, "vllm"),
        ({"shared_prefix_tokens": 3800}, 4000, "sglang"),
    ],
)
def test_a_rate_of_shared_prompts_is_that_of_the_simulator(shared, prompt, engine) -> None:
    asked = {"model": "Qwen/Qwen3-4B", "gpu": "L4", "num_gpus": 1, "rate": 2, "engine": engine}
    asked |= {**shared, "input_tokens": prompt, "output_tokens": 100}
    found = st.estimate(**asked)
    users = found.load_names["at 2 requests/s"]
    (point,) = [point for point in found.curve if point.concurrency == users]
    run = st.simulate(**asked, requests=300)
    assert point.ttft_ms == pytest.approx(run.record.results["mean_ttft_ms"], rel=0.1)
    assert point.e2e_ms == pytest.approx(run.record.results["mean_e2e_latency_ms"], rel=0.05)


def test_shared_prompts_are_named_and_cost_less() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "H100", "num_gpus": 1, "concurrency": 32}
    alone = st.estimate(**asked, input_tokens=1024)
    within = st.estimate(**asked, input_tokens=1024, shared_prefix_tokens=768, prefixes=3)
    before = st.estimate(**asked, input_tokens=256, prefix_tokens=768, prefixes=3)
    again = st.estimate(**asked, input_tokens=1024, distinct_prompts=40)
    assert within.curve == before.curve
    assert "1024 in, 512 out tokens, one of 3 prefixes of 768 tokens" in str(before)
    assert "40 different prompts" in str(again)
    assert "prefix cache          has 75% of the prompts' tokens" in str(within)
    fractions = [
        found.to_json()["chosen"]["answer"]["cached_fraction"] for found in (within, alone)
    ]
    assert fractions == [0.75, 0.0]
    limits = [found.chosen.answer.limits for found in (alone, within, again)]
    assert limits[1].memory > 1.5 * limits[0].memory
    assert limits[2].prefill > limits[1].prefill > limits[0].prefill
    for found, words in ((within, "random_prefix_len=768;num_prefixes=3"), (again, "prompts=40")):
        assert all(words in command for command in found.tune_commands.values())
    swept = st.estimate(**{**asked, "concurrency": None}, shared_prefix_tokens=768, sweep=True)
    plain = st.estimate(**{**asked, "concurrency": None}, sweep=True)
    rates = [found.ranked[0].swept.point.output_tokens_per_s for found in (swept, plain)]
    assert rates[0] > 1.1 * rates[1]
    rated = st.estimate(**{**asked, "concurrency": None}, shared_prefix_tokens=768, rate=5)
    assert rated.chosen.answer.cached_fraction == 0.75


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--prefixes", "3"), "no meaning without --shared-prefix"),
        (("--shared-prefix", "2000"), "no room for a shared prefix"),
        (("--shared-prefix", "9", "--prefix-len", "9"), "give one of the two"),
        (("--shared-prefix", "9", "--distinct-prompts", "9"), "contradict each other"),
        (("--dataset", "sharegpt", "--distinct-prompts", "9"), "sharegpt has prompts of its own"),
        (("--estimator", "both", "--prefix-len", "9"), "prompts that share nothing"),
    ],
)
def test_shared_prompts_that_cannot_be_are_one_clear_line(servetune, arguments, says):
    done = servetune(*ON_H100, *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_every_form_of_an_estimate_names_the_release(servetune) -> None:
    for form in (ON_H100[3:], (*ON_H100[3:], "--sweep"), ("--gpu", "all")):
        done = servetune(*ON_H100[:3], *form, "--engine-version", "0.33.0")
        assert done.returncode == 0, done.stderr
        words = " ".join(done.stdout.split())
        assert "Release: vLLM 0.33.0" in words
        assert "measured runs are of 0.4 to 0.26, which this one is outside of" in words
    release = data(servetune(*ON_H100, "--json"))["release"]
    assert release["version"] is None
    assert release["scheduler"] == "0.32"
    assert release["measured"] == ["0.4", "0.26"]
    assert "Release: vLLM (none named)" in servetune(*ON_H100).stdout


def test_server_settings_are_priced_and_come_back_in_the_commands(servetune):
    small = (*ON_H100, "--engine", "sglang", "--input-len", "16", "--output-len", "256", "--json")
    one = data(servetune(*small))["chosen"]["answer"]
    asked = (*small, "--quantization", "fp8", "--server-args", "tokenizer_worker_num=4")
    found = data(servetune(*asked))
    assert any("raise tokenizer_worker_num" in note for note in one["notes"])
    best = found["chosen"]["answer"]["best_throughput"]["output_tokens_per_s"]
    assert best > one["best_throughput"]["output_tokens_per_s"]
    assert "tokenizer_worker_num=4" in found["tune_commands"]["simple"]


def test_pipeline_stages_of_one_plan_are_priced(servetune):
    four = ("estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--num-gpus", "4")
    found = data(servetune(*four, "--server-args", "pipeline_parallel_size=2", "--json"))
    splits = [split["plan"] for split in found["splits"]]
    assert [(p["tensor_parallel"], p["replicas"]) for p in splits] == [(1, 2), (2, 1)]
    assert "pipeline_parallel_size=2" in found["tune_commands"]["simulated"]
    uneven = servetune(*four, "--server-args", "pipeline_parallel_size=3")
    assert "3 pipeline stages do not divide" in uneven.stderr
    idle = servetune(*four, "--tp", "1", "--server-args", "pipeline_parallel_size=3")
    assert "3 pipeline stages of 1 GPUs do not divide 4x L4" in idle.stderr
    swept = servetune(*four, "--sweep", "--server-args", "pipeline_parallel_size=2")
    assert "pipeline stages are priced for one machine" in swept.stderr


def test_a_data_set_has_lengths_of_its_own(servetune):
    done = servetune(*ON_H100, "--dataset", "sharegpt", "--output-len", "100")
    assert done.returncode == 2
    assert "sharegpt has lengths of its own" in done.stderr


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("api_server_count=[1,2]", "has 2 values, and a server is started with one"),
        ("tensor_parallel_size=2", "the split over GPUs is not read from --server-args"),
        ("api_srver_count=2", "has no setting api_srver_count"),
        ("api_server_count=-1", "api_server_count is 1 or more, got -1"),
        ("api_server_count=0", "api_server_count is 1 or more, got 0"),
        ("max_model_len=4096", "max_model_len is given twice"),
    ],
)
def test_server_settings_that_an_estimate_cannot_price_are_refused(servetune, settings, why):
    done = servetune(*ON_H100, "--max-model-len", "8192", "--server-args", settings)
    assert done.returncode == 2
    assert why in done.stderr


def test_server_settings_that_no_formula_reads_are_named(servetune):
    done = servetune(*ON_H100, "--server-args", "api_server_count=2;stream_interval=4;seed=1")
    assert done.returncode == 0
    assert "without effect on the estimate: seed" in done.stderr


def test_settings_of_sglangs_memory_for_states_are_read_and_shown(called):
    words = ("estimate", "--model", "Qwen/Qwen3.5-9B", "--gpu", "H100", "--engine", "sglang")
    lengths = ("--input-len", "512", "--output-len", "128")
    plain = called(*words, *lengths)
    assert "22.98 GiB for the states of 95 sequences" in plain.stdout
    settings = "mamba_full_memory_ratio=0.2;mamba_radix_cache_strategy=no_buffer"
    fewer = called(*words, *lengths, "--server-args", settings)
    assert "for the states of 56 sequences" in fewer.stdout
    unkept = called(*words, *lengths, "--server-args", "disable_radix_cache=true")
    assert "for the states of 478 sequences" in unkept.stdout
    assert "without effect" not in fewer.stderr + unkept.stderr


def test_a_checkpoint_that_filters_costs_time_where_the_server_reads_it(servetune, tmp_path):
    config = load_config("Qwen/Qwen3-8B", catalogue_first=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = {"top_k": 20, "temperature": 0.6, "repetition_penalty": 1.05}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    on = ("estimate", "--model", str(tmp_path), "--gpu", "H100", "--json")
    reading, ignoring = (
        servetune(*on, *more) for more in ((), ("--server-args", "generation_config=vllm"))
    )
    rates = [
        data(each)["chosen"]["answer"]["best_throughput"]["output_tokens_per_s"]
        for each in (reading, ignoring)
    ]
    assert 0.7 < rates[0] / rates[1] < 1
    assert "the checkpoint's repetition_penalty is priced" in reading.stdout
    assert "repetition_penalty" not in ignoring.stdout
    elsewhere = servetune(*on, "--engine", "sglang")
    assert "repetition_penalty of generation_config.json is not priced" in elsewhere.stderr


def test_sampling_that_is_not_priced_on_a_device_is_said_so(called, tmp_path):
    config = load_config("Qwen/Qwen3-8B", catalogue_first=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = {"top_k": 20, "top_p": 0.95, "temperature": 0.6, "repetition_penalty": 1.05}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    on = ("estimate", "--model", str(tmp_path), "--gpu")
    amd, nvidia = called(*on, "MI300X").stderr, called(*on, "H100").stderr
    assert "top-k and top-p of generation_config.json are not priced on MI300X" in amd
    assert "repetition_penalty of generation_config.json is not priced on MI300X" in amd
    assert "not priced" not in nvidia
    ignoring = called(*on, "MI300X", "--server-args", "generation_config=vllm").stderr
    assert "not priced" not in ignoring
    sglang = called(*on, "MI300X", "--engine", "sglang").stderr
    assert "top-k and top-p of generation_config.json are not priced on MI300X" in sglang


def test_a_workload_brings_its_lengths_sharing_and_users():
    found = st.estimate("Qwen/Qwen3-4B", gpu="L4", workload="multi_turn_chat")
    assert found.shown.concurrency == 10
    assert 0.5 < found.chosen.answer.cached_fraction < 0.8
    assert "workload=multi_turn_chat" in found.tune_commands["simple"]
    with pytest.raises(InputError, match="--input-tokens cannot be combined"):
        st.estimate("Qwen/Qwen3-4B", gpu="L4", workload="multi_turn_chat", input_tokens=5)


def test_a_workload_in_open_loop_brings_its_rate(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'arrivals = "kind=constant,rate_per_s=0.5"\n[[part]]\ninput_tokens = 300\n'
        "output_tokens = 50\n"
    )
    found = st.estimate("Qwen/Qwen3-4B", gpu="L4", workload=str(file))
    assert found.shown.rate == 0.5


@pytest.mark.parametrize("load", [(), ("-c", "16"), ("--rate", "0.5")])
def test_a_constraint_that_no_load_holds_is_a_missed_target(servetune, load):
    asked = ("estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", *load)
    assert servetune(*asked, "--constraints", "ttft<=1ms").returncode == 1
    assert servetune(*asked, "--constraints", "ttft<=30s").returncode == 0


def test_a_number_of_users_that_misses_what_fewer_hold_is_a_missed_target():
    found = st.estimate("Qwen/Qwen3-4B", gpu="L4", concurrency=16, constraints="itl<=45ms")
    assert found.constraints.concurrency < 16
    assert "concurrency 16 misses itl<=45ms: 51.3 ms predicted" in str(found)
    assert not found.feasible
    assert st.estimate("Qwen/Qwen3-4B", gpu="L4", concurrency=2, constraints="itl<=45ms").feasible


def test_constraints_are_judged_at_a_rate_that_is_stated():
    asked = {"model": "Qwen/Qwen3-4B", "gpu": "L4", "rate": 0.5}
    found = st.estimate(**asked, constraints="ttft:p99<=1s;itl<=80ms")
    text = " ".join(str(found).split())
    assert found.feasible
    assert "0.5 requests/s hold itl<=80ms, ttft:p99<=1s" in text
    assert "largest within limits" not in text
    run = st.simulate(**asked, input_tokens=1024, output_tokens=512, constraints="ttft:p99<=1s")
    judged = found.constraints.results["p99_ttft_ms"]
    assert judged == pytest.approx(run.record.results["p99_ttft_ms"], rel=1e-9)
    missed = st.estimate(**asked, constraints="ttft:p99<=700ms")
    assert not missed.feasible
    assert "0.5 requests/s miss ttft:p99<=700ms: 611.0 ms predicted" in " ".join(
        str(missed).split()
    )
    assert st.estimate(**asked, constraints="ttft:p99<=700ms", confidence=0.5).feasible
    assert not st.estimate(**{**asked, "rate": 1.0}, constraints="ttft:p99<=700ms").feasible
    by_means = st.estimate(**asked, constraints="itl<=50ms;ttft:p99<=1s")
    assert [miss.limit.label for miss in by_means.constraints.missed] == ["itl<=50ms"]
    assert by_means.constraints.results is None


def test_the_text_has_the_interval_of_first_tokens_and_joins_it_where_answers_are_short():
    found = st.estimate(
        "Qwen/Qwen3-4B", gpu="L4", concurrency=8, input_tokens=4000, output_tokens=2
    )
    (point,) = [point for point in found.curve if point.concurrency == 8]
    [interval] = [i for p, i in zip(found.curve, found.intervals, strict=True) if p is point]
    text = " ".join(str(found).split())
    first = f"{interval.ttft_low_factor:.3g} to {interval.ttft_high_factor:.3g}"
    assert f"first tokens {first}" in text
    (low, high) = re.findall(r"([\d.]+) to ([\d.]+) s ", text)[0]
    ends = point.ttft_ms * interval.ttft_low_factor, point.ttft_ms * interval.ttft_high_factor
    rest_ms = point.e2e_ms - point.ttft_ms
    assert 1e3 * float(low) <= ends[0] + rest_ms
    assert 1e3 * float(high) >= ends[1]


def test_long_answers_have_the_interval_of_times_also_where_users_queue():
    found = st.estimate("Qwen/Qwen3-4B", gpu="L4")
    queued = found.curve[-1]
    interval, e2e_s = found.intervals[-1], queued.e2e_ms / 1e3
    assert queued.queued
    ends = f"{e2e_s * interval.low_factor:.3g} to {e2e_s * interval.high_factor:.3g} s"
    assert ends in str(found)
    assert f"first tokens {min(i.ttft_low_factor for i in found.intervals):.3g} to" in str(found)


def test_the_interval_in_words_tells_laboratories_from_publishers():
    text = " ".join(str(st.estimate("Qwen/Qwen3-4B", gpu="L4")).split())
    assert "the device was not measured" not in text
    (said,) = re.findall(
        r"no laboratory measured this device .*? \(published runs like it: (\d+)\)", text
    )
    assert f"{said} published runs of" in text


def test_machines_are_compared_with_the_accuracy_and_the_interval_of_each(servetune):
    found = st.estimate("Qwen/Qwen3-4B", gpu="all", num_gpus=1, top=300)
    lines = str(found).splitlines()
    start = next(n for n, line in enumerate(lines) if line.endswith("accuracy"))
    ends = [
        line.rsplit("  ", 1)[1] for line in lines[start + 1 :] if re.match(r" *\d+ +\d+ ", line)
    ]
    assert len(ends) == len(found.usable) == len(found.intervals)
    assert "-" in ends
    for text, interval in zip(ends, found.intervals, strict=True):
        assert text == rows_text(interval)
        accuracy = interval.accuracy
        known = accuracy.median_percent is not None
        assert text == (f"{accuracy.median_percent:.0f}% of {accuracy.rows}" if known else "-")
    assert "accuracy: median error" in str(found)
    assert all(len(line) <= 80 for line in lines)
    one = st.estimate("Qwen/Qwen3-4B", gpu="L4").chosen.answer.interval
    of_l4 = [n for n, offer in enumerate(found.usable) if offer.node.device.name == "L4"]
    assert found.intervals[of_l4[0]].accuracy == one.accuracy
    offers = data(servetune("estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "all", "--json"))
    assert all(offer["interval"]["accuracy"]["rows"] for offer in offers["offers"])
    assert offers["offers"][0]["interval"]["low_factor"] < 1


def test_a_sweep_over_machines_has_the_accuracy_of_each():
    found = st.estimate("Qwen/Qwen3-4B", instance="all", gpu="L4", num_gpus=1, sweep=True, top=2)
    rows = found.ranked[0].interval.accuracy
    assert re.search(rf"{rows.median_percent:.0f}% of {rows.rows}$", str(found), re.MULTILINE)


def test_rows_of_publishers_are_marked_where_laboratories_have_none():
    interval = st.estimate("Qwen/Qwen3-4B", gpu="L4").chosen.answer.interval
    known = interval.accuracy
    none = msgspec.structs.replace(known, rows=0, median_percent=None, most_percent=None)
    published = msgspec.structs.replace(interval, accuracy=none)
    assert known.published is not None
    assert rows_text(published) == f"{known.published.median_percent:.0f}% of 13*"
    assert "* published runs" in legend_text([interval, published])
    unknown = msgspec.structs.replace(none, published=none)
    assert rows_text(msgspec.structs.replace(interval, accuracy=unknown)) == "-"


@pytest.mark.parametrize(("rate", "doubted"), [(0.4, False), (1.0, True)])
def test_a_rate_that_may_not_be_served_is_said_to_be_one(called, rate, doubted):
    """A law 10% slower has first tokens twenty times as late there; no interval says that."""
    words = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--rate", str(rate))
    for verb, more in (("estimate", ()), ("simulate", ("-n", "60"))):
        done = called(verb, *words, *more)
        assert done.returncode == 0
        text = " ".join(done.stdout.split())
        assert ("may not keep up: " in text) == doubted
        assert ("at the slow end of the interval" in text) == doubted


def test_a_hint_at_other_weights_names_what_the_device_has_kernels_for(called):
    done = called(
        *("estimate", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "V100S"),
        *("--quantization", "w8a16"),
    )
    assert done.returncode == 2
    assert "w8a8" not in done.stderr
    assert "fp8 needs" not in done.stderr


@pytest.mark.parametrize(
    ("words", "doubted"),
    [
        (("--rate", "1", "-n", "2"), False),  # too short to queue
        (("--rate", "0.8", "-c", "4", "-n", "100"), True),  # four at once are served slower
        (("--rate", "0.6", "--turns", "4", "-n", "100"), True),  # a turn is a request
        (("--arrivals", "kind=piecewise,steps=[(50,0.2),(60,3),(50,0.2)]", "-n", "180"), True),
    ],
)
def test_a_simulated_rate_is_doubted_by_what_its_requests_ask(called, words, doubted):
    done = called("simulate", "--model", "Qwen/Qwen3-0.6B", "--gpu", "L4", *words)
    assert done.returncode == 0
    assert ("may not keep up: " in done.stdout) == doubted


@pytest.mark.parametrize("limit", ["request_throughput>=0.45", "output_throughput>=200"])
def test_a_rate_that_is_served_holds_its_own_throughput(called, limit):
    """It is that at which requests come, whatever their times: simulate says that it holds."""
    machine = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--num-gpus", "4")
    done = called("estimate", *machine, "--rate", "0.5", "--constraints", limit)
    assert done.returncode == 0, done.stdout


def test_percentiles_of_conversations_are_judged_at_the_stated_rate_of_requests():
    found = st.estimate(
        "Qwen/Qwen3-4B",
        gpu="L4",
        num_gpus=4,
        rate=0.5,
        workload="multi_turn_chat",
        constraints="ttft:p99<=5s",
    )
    assert found.constraints.results.request_throughput == pytest.approx(0.5, rel=0.1)

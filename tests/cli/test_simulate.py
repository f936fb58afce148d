import json

import pytest

from servetune.store import read_journal

PLAN = ("simulate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4")
SHORT = ("--input-len", "100", "--output-len", "20")
TRACE = "due_s,input_tokens,output_tokens\n0,100,20\n1.5,50,10\n2,70,30\n"


@pytest.fixture
def servetune(called):
    return called


def data(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(done, said):
    assert done.returncode == 2
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""


def test_a_closed_loop_is_a_trial_as_tune_would_simulate_it(servetune, tmp_path):
    load = ("--concurrency", "8", "--requests", "40", *SHORT)
    record = data(servetune(*PLAN, *load, "--tensor-parallel", "1", "--json"))
    tuned = servetune(
        "tune",
        "--engine",
        "simulated",
        *PLAN[1:],
        "--server-args",
        "tensor_parallel_size=1",
        "--client-args",
        "max_concurrency=8;num_prompts=40;random_input_len=100;random_output_len=20",
        "--output-json",
        "t.json",
    )
    assert tuned.returncode == 0, tuned.stderr
    (other,) = read_journal(tmp_path / "t.jsonl")
    assert record == json.loads(other.to_json())


def test_the_table_says_simulated_first(servetune):
    done = servetune(*PLAN, "--rate", "2", "--requests", "20", *SHORT)
    assert done.returncode == 0
    assert done.stdout.startswith("SIMULATED")
    assert "2 requests/s, poisson" in done.stdout
    for word in ("Time to first token", "KV cache at its fullest", "preemptions", "saturated"):
        assert word in done.stdout


def test_a_named_workload_is_asked_by_its_own_users(servetune):
    load = (*PLAN, "--workload", "multi_turn_chat", "--requests", "40")
    done = servetune(*load, "--server-args", "enable_prefix_caching=true", "--json")
    results = data(done)["results"]
    assert results["completed"] == 40
    assert results["total_input_tokens"] / 40 == pytest.approx(550, rel=0.02)
    assert results["server"]["cached_fraction"] > 0.7
    assert "10 users, multi_turn_chat" in servetune(*load).stdout
    refused(servetune(*load, "--input-len", "5"), "has its own prompts")


def test_goodput_is_under_the_latencies_of_the_constraints(servetune):
    load = (*PLAN, "--concurrency", "32", "--requests", "200", "--json")
    tight = data(servetune(*load, "--slo", "ttft<=400ms"))
    assert 0 < tight["results"]["goodput"] < tight["results"]["request_throughput"]
    by_constraint = servetune(*load, "--constraints", "ttft:p99<=400ms")
    assert by_constraint.returncode == 1  # the limit is missed
    assert json.loads(by_constraint.stdout)["results"]["goodput"] == tight["results"]["goodput"]


def test_out_has_journal_summary_requests_and_a_dashboard_with_timelines(servetune, tmp_path):
    run = (*PLAN, "--concurrency", "4", "--requests", "30", *SHORT, "--out", "o", "--token-times")
    assert servetune(*run).returncode == 0
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        "simulated.html",
        "simulated.json",
        "simulated.jsonl",
        "simulated.requests.jsonl",
        "simulated.toml",
    ]
    (record,) = read_journal(tmp_path / "o" / "simulated.jsonl")
    lines = (tmp_path / "o" / "simulated.requests.jsonl").read_text().splitlines()
    requests = [json.loads(line) for line in lines]
    assert len(requests) == record.results["completed"] == 30
    tokens = [len(request["token_times_s"]) for request in requests]
    assert sum(tokens) == record.results["total_output_tokens"]
    page = (tmp_path / "o" / "simulated.html").read_text()
    assert '"timeline":{"duration_s":' in page
    refused(servetune(*run), "exists already")


def test_equal_runs_leave_equal_files(servetune, tmp_path):
    run = (*PLAN, "--rate", "5", "--requests", "30", *SHORT, "--out")
    assert servetune(*run, "a").returncode == servetune(*run, "b").returncode == 0
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_trace_is_replayed_and_scaled(servetune, tmp_path):
    (tmp_path / "t.csv").write_text(TRACE)
    run = (*PLAN, "--trace", "t.csv", "--out")
    assert servetune(*run, "a").returncode == 0
    assert servetune(*run, "b", "--time-scale", "2", "--requests", "2").returncode == 0

    def due_s(folder):
        lines = (tmp_path / folder / "simulated.requests.jsonl").read_text().splitlines()
        return [json.loads(line)["due_s"] for line in lines]

    assert due_s("a") == [0.0, 1.5, 2.0]
    assert due_s("b") == [0.0, 3.0]


def test_requests_without_an_answer_are_left_out_aloud(servetune, tmp_path):
    (tmp_path / "t.csv").write_text(TRACE + "3,80,0\n")
    done = servetune(*PLAN, "--trace", "t.csv")
    assert done.returncode == 0
    assert "note: 1 requests of t.csv" in done.stderr


def test_a_rate_beyond_capacity_stops_by_duration_and_says_so(servetune):
    done = servetune(*PLAN, "--rate", "500", "--duration", "20")
    assert done.returncode == 0
    assert "SATURATED" in done.stdout
    assert "answered in 20.00 s" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the workload has no arrivals"),
        (("--concurrency", "4", "--input-len", "50000"), "more than max_model_len 40960"),
        (("--concurrency", "4", "--server-args", "max_num_seqs=[1,2]"), "has 2 values"),
        (
            (
                *("--concurrency", "4", "--engine", "sglang"),
                *("--server-args", "max_running_requests=[8,16]"),
            ),
            "sweep with servetune tune --engine simulated-sglang",
        ),
        (("--concurrency", "4", "--client-args", "max_concurrency=5"), "given twice"),
        (("--trace", "gone.csv"), "cannot read the trace gone.csv"),
        (("--trace", "back.csv"), "back.csv line 3: due_s 1 is before the line above it"),
        (("--trace", "back.csv", "--dataset", "sharegpt"), "a trace has requests of its own"),
        (("--concurrency", "4", "--slo", "ttft<=-1s"), "ttft is never below 0"),
        (("--trace", "back.csv", "--input-len", "5"), "trace has lengths of its own"),
        (("--rate", "3", "--time-scale", "2"), "--time-scale has no meaning without --trace"),
        (("--rate", "0.001", "--duration", "1"), "no request is due within 1 s"),
        (("--concurrency", "4", "--replicas", "2"), "devices"),
        (("--concurrency", "4", "--token-times"), "--token-times are kept with --out"),
        (("--concurrency", "4", "--slo", "error_rate<=1"), "--slo judges single requests"),
        (
            ("--concurrency", "4", "--server-args", "num_gpu_blocks_override=10"),
            "can be stored in KV cache (160)",
        ),
        (
            ("--concurrency", "4", "--server-args", "num_gpu_blocks_override=90;max_model_len=900"),
            "request 0 has 1024 + 512 tokens, more than max_model_len 900",
        ),
        (
            (
                *("--concurrency", "4", "--engine", "tgi"),
                *("--server-args", "max_batch_total_tokens=160"),
            ),
            "more than max_batch_total_tokens 160",
        ),
        (
            ("--concurrency", "4", "--server-args", "max_num_batched_tokens=64;max_num_seqs=128"),
            "vLLM refuses to start: max_num_batched_tokens (64) must be greater",
        ),
        (("--concurrency", "4", "--server-args", "block_size=7"), "block_size 7 is not"),
        (
            ("--concurrency", "4", "--server-args", "scheduling_policy=bogus"),
            "scheduling_policy is one of fcfs, priority, got 'bogus'",
        ),
        (("--rate", "nan"), "nan is not a number"),
        (("--concurrency", "4", "--engine-version", "nightly"), "nightly is no release of vLLM"),
        (
            ("--concurrency", "4", "--server-args", "gpu_memory_utilization=0.42"),
            "one sequence of 40960 tokens needs 5.62 GiB of cache",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_is_written(
    servetune, tmp_path, arguments, said
):
    (tmp_path / "back.csv").write_text("due_s,input_tokens,output_tokens\n2,1,1\n1,1,1\n")
    refused(
        servetune(*PLAN, *arguments, "--out", "o")
        if "--token-times" not in arguments
        else servetune(*PLAN, *arguments),
        said,
    )
    assert not (tmp_path / "o").exists()


def test_the_release_is_named_and_an_old_one_is_slower(servetune):
    load = ("--concurrency", "8", "--requests", "16", *SHORT)
    now, then = (
        servetune(*PLAN, *load, *release) for release in ((), ("--engine-version", "0.7.3"))
    )
    assert "Release: vLLM (none named), with the step times of releases from" in now.stdout
    assert "Release: vLLM 0.7.3, with the step times of releases from 0.6.2" in then.stdout
    record = data(servetune(*PLAN, *load, "--engine-version", "0.7.3", "--json"))
    assert record["config"]["server_args"] == {"engine_version": "0.7.3"}
    assert record["config"]["server_cmd_args"] == []
    faster = data(servetune(*PLAN, *load, "--json"))["results"]["output_throughput"]
    assert record["results"]["output_throughput"] < 0.97 * faster


def test_settings_that_change_nothing_are_named(servetune):
    load = ("--concurrency", "2", "--requests", "4", *SHORT)
    done = servetune(*PLAN, *load, "--server-args", "max_num_seqs=4;max_num_seq=3;seed=2")
    assert done.returncode == 2
    assert "has no setting max_num_seq" in done.stderr
    assert "did you mean max_num_seqs" in done.stderr
    args = ("--server-args", "max_num_seqs=4;max_num_seq=3;seed=2", "--allow-unknown")
    done = servetune(*PLAN, *load, *args)
    assert done.returncode == 0
    assert "without effect on the simulation: max_num_seq, seed" in done.stderr


def measured(servetune, tmp_path, **changes):
    """A journal of the simulator's own records that say they were measured."""
    out = tmp_path / "source"
    load = ("--concurrency", "8", "--requests", "30", *SHORT)
    assert servetune(*PLAN, *load, "--out", out).returncode == 0
    record = json.loads((out / "simulated.jsonl").read_text())
    record |= {"simulated": False, **changes}
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return path


def test_a_measurement_equal_to_its_simulation_has_no_error(servetune, tmp_path):
    path = measured(servetune, tmp_path)
    found = data(servetune("simulate", "--compare", path, "--json"))
    errors = [gap["error_fraction"] for gap in found["trials"][0]["gaps"]]
    assert errors == [0.0] * 9
    assert all(row["error_fraction"] == 0.0 for row in found["median_absolute_errors"])
    table = servetune("simulate", "--compare", path).stdout
    assert table.startswith("SIMULATED: 1 measured trial")
    assert "median error of 1" in table


def test_another_machine_may_be_named_for_the_comparison(servetune, tmp_path):
    path = measured(servetune, tmp_path)
    found = data(servetune("simulate", "--compare", path, "--gpu", "H100", "--json"))
    assert all(gap["error_fraction"] != 0.0 for gap in found["trials"][0]["gaps"])


def test_trials_that_cannot_be_played_again_are_named(servetune, tmp_path):
    path = measured(servetune, tmp_path)
    record = json.loads(path.read_text())
    record["key"] = "other"
    record["plan"]["tensor_parallel"] = 7
    path.write_text(path.read_text() + json.dumps(record) + "\n")
    done = servetune("simulate", "--compare", path)
    assert done.returncode == 0
    assert "left out" in done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"simulated": True}, "holds no trial that was measured"),
        ({"metadata": {"gpu_type": "L4"}}, "does not name its model"),
        ({"metadata": {"model_tag": "Qwen/Qwen3-4B"}}, "does not name its GPU"),
        ({"metadata": {"model_tag": "Qwen/Qwen3-4B", "gpu_type": "L5"}}, "unknown GPU 'L5'"),
    ],
)
def test_records_that_say_too_little_are_refused(servetune, tmp_path, changes, said):
    refused(servetune("simulate", "--compare", measured(servetune, tmp_path, **changes)), said)


def test_a_comparison_takes_its_load_from_the_file_alone(servetune, tmp_path):
    path = measured(servetune, tmp_path)
    refused(servetune("simulate", "--compare", path, "--rate", "3"), "--rate cannot change")


def client_report(folder, result, *, rate):
    """A result as inference-perf's report of a stage, in seconds (its reportgen/base.py)."""

    def seconds(name):
        statistics = ("mean", "median", "p90", "p99")
        return {each: result[f"{each}_{name}_ms"] / 1e3 for each in statistics}

    count = result["completed"]
    report = {
        "load_summary": {"count": count, "requested_rate": rate, "schedule_delay": {"mean": 0.0}},
        "successes": {
            "count": count,
            "latency": {
                "request_latency": seconds("e2e_latency"),
                "time_to_first_token": seconds("ttft"),
                "time_per_output_token": seconds("tpot"),
                "inter_token_latency": seconds("itl"),
            },
            "throughput": {
                "requests_per_sec": result["request_throughput"],
                "output_tokens_per_sec": result["output_throughput"],
                "input_tokens_per_sec": result["input_throughput"],
            },
            "prompt_len": {"mean": 100.0, "min": 100.0, "max": 100.0},
            "output_len": {"mean": 20.0, "min": 20.0, "max": 20.0},
        },
        "failures": {"count": 0},
    }
    folder.mkdir(exist_ok=True)
    (folder / "stage_0_lifecycle_metrics.json").write_text(json.dumps(report))
    return folder


def test_a_load_clients_report_is_simulated_at_its_rate_and_with_the_servers_settings(
    servetune, tmp_path
):
    law = ("--arrivals", "kind=poisson,count=60")  # as inference-perf's constant load is
    load = ("--rate", "4", "--requests", "60", *law, *SHORT)
    ran = data(servetune(*PLAN, *load, "--server-args", "max_num_seqs=2", "--json"))
    path = client_report(tmp_path / "reports-1", ran["results"], rate=4.0)
    named = ("simulate", "--compare", path, *PLAN[1:])
    again = servetune(*named, "--server-args", "max_num_seqs=2", "--json")
    assert [gap["error_fraction"] for gap in data(again)["trials"][0]["gaps"]] == [
        pytest.approx(0.0, abs=1e-9)
    ] * 9
    assert "does not send at even gaps" in again.stderr
    assert "how the server was started" not in again.stderr
    assumed = servetune(*named, "--json")
    assert data(assumed)["trials"][0]["gaps"][2]["error_fraction"] < -0.1  # two at a time queue
    assert "inference-perf does not record how the server was started" in assumed.stderr
    refused(servetune("simulate", "--compare", path), "does not name its model")
    (path / "stage_0_lifecycle_metrics.json").write_text("{}")
    refused(servetune(*named), "missing required field load_summary")


def test_records_that_know_their_server_take_no_settings(servetune, tmp_path):
    path = measured(servetune, tmp_path)
    settings = ("--server-args", "max_num_seqs=2")
    refused(servetune("simulate", "--compare", path, *settings), "say how their servers")


def test_the_published_records_stand_beside_their_simulation(servetune, shared):
    path = shared / "data" / "aws_l4_records.jsonl"
    found = data(servetune("simulate", "--compare", path, "--json"))
    assert len(found["trials"]) == 3
    errors = {(e["quantity"], e["statistic"]): e for e in found["median_absolute_errors"]}
    assert errors["output_throughput", "mean"]["error_fraction"] < 0.10
    assert errors["e2e_latency", "mean"]["error_fraction"] < 0.15


def test_drafts_may_be_given_and_shorten_gaps(servetune):
    load = ("--concurrency", "4", "--requests", "20", *SHORT, "--json")
    drafts = ("--draft-tokens", "3", "--draft-acceptance", "0.9")
    plain, drafted = data(servetune(*PLAN, *load)), data(servetune(*PLAN, *drafts, *load))
    assert drafted["results"]["mean_tpot_ms"] < 0.6 * plain["results"]["mean_tpot_ms"]
    assert drafted["plan"]["draft_tokens"] == 3
    assert "speculative" in drafted["cmd"]
    assert drafted["results"]["server"]["itl_is_tpot"] is False
    refused(servetune(*PLAN, "--draft-acceptance", "0.9", *load), "drafts no tokens")


def test_copies_that_are_chosen_at_random_have_the_longer_tail(servetune):
    """At four fifths of what is served, where chance leaves some copies with a queue."""
    copies = ("--num-gpus", "4", "--replicas", "4", "--server-args", "max_num_seqs=8")
    load = (*copies, "--rate", "8", "--input-len", "500", "--output-len", "50", "--json")
    p99_ms = {}
    for rule in ("round-robin", "least-outstanding", "random"):
        record = data(servetune(*PLAN, *load, "--routing", rule))
        assert record["config"]["server_args"]["routing"] == rule
        p99_ms[rule] = record["results"]["p99_e2e_latency_ms"]
    assert p99_ms["random"] > 1.1 * max(p99_ms["round-robin"], p99_ms["least-outstanding"])
    unnamed = data(servetune(*PLAN, *load))["results"]["p99_e2e_latency_ms"]
    assert unnamed == p99_ms["round-robin"]
    refused(servetune(*PLAN, "--routing", "random", "--rate", "1", *SHORT), "needs several copies")


def test_prompts_may_be_computed_by_copies_of_their_own(servetune, tmp_path):
    cards = ("simulate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--num-gpus", "4")
    load = ("--rate", "1", "--requests", "30", *SHORT)
    apart = data(servetune(*cards, "--prefill-replicas", "2", "--replicas", "2", *load, "--json"))
    assert apart["config"]["server_args"] == {"replicas": 2, "prefill_replicas": 2}
    assert "prefill" not in apart["cmd"]
    together = data(servetune(*cards, "--replicas", "2", *load, "--json"))
    ttft = [record["results"]["mean_ttft_ms"] for record in (apart, together)]
    assert ttft[0] > ttft[1]  # the cache travels, and one more step is taken
    one = servetune(*PLAN, "--prefill-replicas", "1", *load)
    refused(one, "needs 2 devices (one replica, and 1 for prompts)")
    refused(servetune(*cards, "--kv-link", "node", *load), "needs separate copies for prompts")
    ways = ("--instance", "g6.12xlarge", "--prefill-replicas", "2", "--replicas", "2")
    model, rate = ("simulate", "--model", "Qwen/Qwen3-4B"), ("--rate", "1", "--requests", "40")
    e2e_ms = {}
    for link in ("node", "network"):
        linked = servetune(*model, *ways, "--kv-link", link, *rate, "--input-len", "2000", "--json")
        assert data(linked)["config"]["server_args"]["kv_link"] == link
        e2e_ms[link] = data(linked)["results"]["mean_e2e_latency_ms"]
    assert e2e_ms["node"] != pytest.approx(e2e_ms["network"], rel=1e-4)


@pytest.mark.parametrize(
    ("law", "answered"),
    [
        ("kind=gamma,rate_per_s=4,burstiness=0.5", (60, 180)),
        ("kind=mmpp,rates_per_s=[2,20],dwell_s=[9,3]", (20, 400)),
        ("kind=piecewise,steps=[(10,2),(10,0),(10,8)]", (60, 140)),
        ("kind=ramp,from_per_s=1,to_per_s=9,over_s=30,gaps=even", (140, 151)),
        ("kind=sine,mean_per_s=4,amplitude_per_s=3,period_s=30", (70, 170)),
        ("kind=scheduled,times_s=[0,0.5,3]", (3, 3)),
    ],
)
def test_every_law_of_arrivals_is_played(servetune, law, answered):
    done = servetune(*PLAN, "--arrivals", law, "--duration", "30", *SHORT, "--json")
    record = data(done)
    results = record["results"]
    least, most = answered
    assert least <= results["completed"] + results["server"]["unfinished"] <= most
    assert record["config"]["client_args"]["arrivals"] == law


def test_the_table_names_the_law_and_a_mistake_its_place(servetune):
    law = "kind=gamma,rate_per_s=4,burstiness=0.5"
    done = servetune(*PLAN, "--arrivals", law, "--requests", "10", *SHORT)
    assert law in done.stdout.replace("\n", "")
    wrong = servetune(*PLAN, "--arrivals", "kind=gamma,rate=4", *SHORT)
    refused(wrong, "kind=gamma has no 'rate', at character 12")


def test_a_sweep_notes_settings_without_effect_and_records_what_vllm_would_refuse(
    servetune, tmp_path
):
    done = servetune(
        "tune",
        "--engine",
        "simulated",
        *PLAN[1:],
        "--server-args",
        "max_num_batched_tokens=[64,2048];max_num_seqs=128;download_dir=x",
        "--client-args",
        "max_concurrency=4;num_prompts=8;random_input_len=100;random_output_len=20",
        "--output-json",
        "t.json",
    )
    assert done.returncode == 0, done.stderr
    assert "note: without effect on the simulation: download_dir" in done.stderr
    refused_one, other = read_journal(tmp_path / "t.jsonl")
    assert refused_one.failure.kind == "does_not_fit"
    assert "must be greater than or equal to max_num_seqs (128)" in refused_one.failure.reason
    assert other.status == "ok"


@pytest.mark.parametrize(
    ("engine", "words", "first_words", "said"),
    [
        ("vllm", "max_num_seqs=8", "vllm serve", "vLLM 0.32 schedules"),
        ("sglang", "max_running_requests=8", "sglang serve", "SGLang 0.5.23"),
        ("tgi", "max_batch_size=8", "text-generation-launcher --model-id", "not compared step"),
    ],
)
def test_the_engine_that_is_named_is_played_and_says_how_well_it_was_checked(
    servetune, engine, words, first_words, said
):
    load = ("--rate", "4", "--requests", "30", *SHORT, "--max-model-len", "2000")
    record = data(servetune(*PLAN, "--engine", engine, "--server-args", words, *load, "--json"))
    assert said in record["results"]["server"]["scheduler"]
    assert record["plan"]["engine"] == ("simulated" if engine == "vllm" else engine)
    assert record["plan"]["max_num_seqs"] == 8
    assert record["plan"]["max_model_len"] == 2000
    assert first_words in record["cmd"]
    assert words.replace("_", "-") in record["cmd"].replace(" ", "=")
    shown = servetune(*PLAN, "--engine", engine, *load)
    assert said in shown.stdout


def test_engines_differ_in_what_they_do_with_the_same_load(servetune):
    load = ("--rate", "3", "--requests", "100", "--input-len", "1500", "--output-len", "100")
    tails = {
        engine: data(
            servetune(*PLAN, "--engine", engine, *load, "--max-model-len", "2000", "--json")
        )["results"]["p99_itl_ms"]
        for engine in ("vllm", "sglang")
    }
    assert tails["sglang"] > tails["vllm"]  # nobody decodes while it computes prompts


def test_prompts_may_begin_alike_and_a_cache_finds_it(servetune):
    load = ("--rate", "1", "--requests", "60", *SHORT, "--prefix-len", "800", "--json")
    one = data(servetune(*PLAN, *load))["results"]
    many = data(servetune(*PLAN, *load, "--prefixes", "30"))["results"]
    assert one["server"]["cached_fraction"] > 0.8 > many["server"]["cached_fraction"] > 0.3
    assert one["mean_ttft_ms"] < many["mean_ttft_ms"]


OVERLOAD = ("--rate", "20", "--requests", "300", "--input-len", "500", "--output-len", "200")


def test_clients_give_up_at_their_time_limit_and_the_text_says_so(servetune):
    free = data(servetune(*PLAN, *OVERLOAD, "--json"))
    done = servetune(*PLAN, *OVERLOAD, "--request-timeout", "40", "--json")
    assert done.returncode == 1  # more failed than --max-error-rate says
    cut = json.loads(done.stdout)
    assert (free["results"]["completed"], free["results"]["failed"]) == (300, 0)
    assert 0 < cut["results"]["failed"] < 300
    (failure,) = cut["results"]["failures"]
    assert (failure["outcome"], failure["sample"]) == ("timeout", "no whole answer within 40 s")
    assert failure["count"] == cut["results"]["failed"]
    printed = servetune(*PLAN, *OVERLOAD, "--request-timeout", "40").stdout
    assert f"{cut['results']['completed']} of 300 answered" in printed
    assert f"FAILED {failure['count']} x timeout: no whole answer within 40 s" in printed


def test_a_run_without_an_answer_is_a_failure(servetune):
    done = servetune(*PLAN, *OVERLOAD, "--request-timeout", "0.01", "--json")
    assert done.returncode == 1
    record = json.loads(done.stdout)
    assert record["status"] == "failed"
    assert record["failure"]["reason"].startswith("no request was answered: timeout")


def test_tune_simulates_the_time_limit_and_the_limit_of_the_engine(servetune, tmp_path):
    load = "request_rate=20;num_prompts=300;random_input_len=500;random_output_len=200"

    def tuned(name, *more):
        done = servetune(
            *("tune", "--engine", name, "--model", "Qwen/Qwen3-4B", "--gpu", "L4"),
            *("--client-args", load, "--output-json", f"{len(list(tmp_path.iterdir()))}.json"),
            *("--max-error-rate", "0.9", *more),
        )
        assert done.returncode == 0, done.stderr
        journals = [path for path in tmp_path.glob("*.jsonl") if "." not in path.stem]
        journal = max(journals, key=lambda path: path.stat().st_mtime_ns)
        (record,) = read_journal(journal)
        return record.results

    assert tuned("simulated", "--request-timeout", "600")["failed"] == 0
    assert tuned("simulated", "--request-timeout", "40")["failed"] > 0
    refused = tuned("simulated-tgi", "--server-args", "max_concurrent_requests=20")
    assert [(each["outcome"], each["status"]) for each in refused["failures"]] == [
        ("http_status", 429)
    ]

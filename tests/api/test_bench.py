"""Load tests from Python, and against trials of a simulated sweep."""

import msgspec
import pytest

import servetune as st
from servetune.api.bench_baseline import like_trial, reproducing
from servetune.api.bench_setup import prepared_load
from servetune.api.request import checked, read_config
from servetune.errors import InputError, StoreError
from servetune.hardware import instance
from servetune.models import load_shape
from servetune.perf.copies import host_fraction
from servetune.plan import Plan
from servetune.search import Space, parse_settings
from servetune.store import TrialConfig, TrialRecord
from servetune.trials import Launch, StudyContext, run_trials, trials_of
from servetune.workload import CLIENT_ARGS

MODEL = "Qwen/Qwen3-4B"
URL = "http://127.0.0.1:9"


def test_a_run_gives_a_typed_record_and_every_request(server):
    seen = []
    found = st.bench(
        server.url,
        requests=12,
        concurrency=3,
        input_tokens="20",
        output_tokens="4",
        on_progress=lambda load, progress: seen.append((load.workload.request_count, progress)),
    )
    assert found.status == 0
    assert found.record.results.completed == len(found.load.records) == 12
    assert seen[0] == (12, None)
    missed = st.bench(
        server.url,
        requests=3,
        input_tokens="20",
        output_tokens="4",
        constraints="ttft:mean<=1us",
    )
    assert missed.status == 1


def test_a_dry_run_sends_nothing_and_shows_the_first_request(server):
    found = st.bench(server.url, model="m", requests=5, dry_run=True, rate=2.0)
    assert found.record is None
    assert "5 requests, the last one due after" in found.planned
    assert not server.truths


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(InputError, match="no meaning without --turns"):
        st.bench(URL, model="m", turn_tokens="5", dry_run=True)


CLIENTS = (
    "random_input_len=200;random_input_sd=150;random_output_len=8;num_prompts=30;max_concurrency=4",
    "random_input_len=90;random_range_ratio=0.5;random_output_len=8;num_prompts=30;request_rate=5",
    "workload=rag_document_qa;num_prompts=30;max_concurrency=4",
    "input_tokens=60;output_tokens=9;turns=3;turn_tokens=20;num_prompts=30;max_concurrency=4",
    "random_input_len=90;random_prefix_len=30;num_prefixes=2;num_prompts=30;max_concurrency=4",
    "random_input_len=90;random_output_len=8;request_rate=9;duration_s=5",
)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_trial_of_a_simulated_sweep_is_asked_again_to_the_letter(client):
    context = StudyContext(
        model=MODEL,
        engine="simulated",
        simulated=True,
        shape=load_shape(MODEL, catalogue_first=True),
        node=instance("ml.g6.12xlarge"),
    )
    space = Space(
        server=parse_settings("tensor_parallel_size=1", types={}),
        client=parse_settings(client, types=CLIENT_ARGS),
    )
    groups = list(trials_of(space, context))
    records = []
    run_trials(groups, context, Launch(), logs=None, ended=records.append, say=print)
    (record,), ((trial,),) = records, groups
    request = msgspec.structs.replace(
        st.Bench(), server=msgspec.structs.replace(st.Bench().server, urls=(URL,), model="m")
    )
    before = prepared_load(like_trial(request, record))
    assert before.workload.requests() == trial.workload.requests()
    assert before.workload.concurrency == trial.workload.concurrency
    again = prepared_load(like_trial(request, record))
    assert [p.token_count for p in again.prompts] == [p.token_count for p in before.prompts]
    assert again.prompts != before.prompts  # or a prefix cache would know them


def test_each_run_has_prompts_of_its_own_and_a_seed_repeats_them(server):
    def prompts(**options):
        loads = []
        found = st.bench(
            server.url,
            requests=4,
            input_tokens="20",
            output_tokens="4",
            on_progress=lambda load, progress: loads.append(load) if progress is None else None,
            **options,
        )
        return loads[0].prompts, found.record

    (first, one), (second, other) = prompts(), prompts()
    assert first != second  # or the second would measure the server's prefix cache
    assert one.metadata["seed"] != other.metadata["seed"]
    again, repeated = prompts(seed=one.metadata["seed"])
    assert again == first
    assert repeated.config.client_args["seed"] == one.config.client_args["seed"]


def test_a_record_has_the_lengths_that_were_sent_by_default(server):
    found = st.bench(server.url, requests=2, concurrency=1)
    args = found.record.config.client_args
    assert (args["input_tokens"], args["output_tokens"]) == ("550", "150")
    request = msgspec.structs.replace(
        st.Bench(), server=msgspec.structs.replace(st.Bench().server, urls=(URL,), model="m")
    )
    again = prepared_load(like_trial(request, found.record))
    sent = {(each.input_tokens, each.output_tokens) for each in again.workload.requests()}
    assert sent == {(550, 150)}
    assert again.workload.seed == found.record.metadata["seed"]


def test_a_trial_with_default_lengths_is_asked_again_with_them(tmp_path):
    study = {"engine": "simulated", "gpu": "L4", "client_args": "num_prompts=5", "concurrency": 2}
    found = st.tune(MODEL, **study, output_json=tmp_path / "q.json")
    request = msgspec.structs.replace(
        st.Bench(), server=msgspec.structs.replace(st.Bench().server, urls=(URL,), model="m")
    )
    again = prepared_load(like_trial(request, found.trials.records[0]))
    assert {each.input_tokens for each in again.workload.requests()} == {1024}
    assert len(again.workload.requests()) == 5


def test_a_run_leaves_the_options_that_repeat_it(server, tmp_path):
    sent = {"requests": 3, "input_tokens": "20", "output_tokens": "4", "out": tmp_path / "run"}
    found = st.bench(server.url, **sent)
    options = read_config(tmp_path / "run" / "bench.toml", st.Bench)
    assert options["seed"] == found.record.metadata["seed"]
    assert "out" not in options  # which holds this run already
    again = prepared_load(checked(st.Bench, options))
    assert again.prompts == prepared_load(checked(st.Bench, options)).prompts
    assert len(again.workload.requests()) == 3


def test_a_simulation_leaves_the_options_that_repeat_it(tmp_path):
    first = st.simulate(MODEL, gpu="L4", concurrency=2, requests=4, out=tmp_path / "sim")
    options = read_config(tmp_path / "sim" / "simulated.toml", st.Simulation)
    assert st.simulate(checked(st.Simulation, options)).record.results == first.record.results


# levels


def test_levels_run_one_after_another_with_prompts_of_their_own(server, tmp_path):
    seen = []
    found = st.bench(
        server.url,
        concurrency="2,1",
        requests=6,
        input_tokens="20",
        output_tokens="4",
        seed=5,
        constraints="ttft:p99<=60s",
        out=tmp_path / "o",
        on_progress=lambda load, progress: seen.append((load.workload.concurrency, progress)),
    )
    assert isinstance(found, st.BenchLevels)
    assert found.status == 0
    assert [users for users, progress in seen if progress is None] == [2, 1]
    assert [each.config.client_args["max_concurrency"] for each in found.records] == [2, 1]
    assert [each.config.client_args["seed"] for each in found.records] == [5, 6]
    assert [len(each.load.records) for each in found.levels] == [6, 6]
    assert list(found.df["max_concurrency"]) == [2, 1]
    assert found.largest == found.records[0]
    assert found.knee in found.records
    told = [body["prompt"] for body in server.bodies if body["max_tokens"] == 4]
    assert len({tuple(prompt) for prompt in told}) == len(told), "no prompt is sent twice"
    kept = st.read(tmp_path / "o" / "bench.jsonl")
    assert [each.key for each in kept] == [each.key for each in found.records]
    for level in ("2-users", "1-users"):
        assert (tmp_path / "o" / level / "bench.requests.jsonl").is_file()
    page = (tmp_path / "o" / "bench.html").read_text(encoding="utf-8")
    timelines = page.split('"timelines":', 1)[1]
    assert all(f'"{each.key}":{{"duration_s"' in timelines for each in found.records)
    again = checked(st.Bench, read_config(tmp_path / "o" / "bench.toml", st.Bench))
    assert again.concurrency == (2, 1)
    assert "largest within ttft:p99<=60s: 2, and more was not tried" in str(found)


def test_a_level_that_breaks_costs_no_level_before_it(server, tmp_path):
    begun = []

    def stop(load, progress):
        begun.append(load)
        if progress is None and load.client_args.get("request_rate") == 40.0:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        st.bench(
            server.url,
            rate=[60, 40],
            requests=4,
            input_tokens="20",
            output_tokens="4",
            out=tmp_path / "o",
            on_progress=stop,
        )
    (kept,) = st.read(tmp_path / "o" / "bench.jsonl")
    assert kept.results.completed == 4
    assert (tmp_path / "o" / "bench.html").is_file()
    assert (tmp_path / "o" / "60-per-s" / "bench.jsonl").is_file()


def test_a_level_is_in_the_journal_of_all_before_the_next_begins(server, tmp_path):
    kept = []

    def look(load, progress):
        if progress is None and load.workload.concurrency == 2:
            kept.extend(st.read(tmp_path / "o" / "bench.jsonl"))

    st.bench(
        server.url,
        concurrency=[1, 2],
        requests=4,
        input_tokens="20",
        output_tokens="4",
        out=tmp_path / "o",
        on_progress=look,
    )
    assert [each.config.client_args["max_concurrency"] for each in kept] == [1]


def test_levels_of_another_run_are_refused_before_anything_is_sent(server, tmp_path):
    (tmp_path / "o" / "2-users").mkdir(parents=True)
    (tmp_path / "o" / "2-users" / "bench.jsonl").write_text("{}\n")
    with pytest.raises(StoreError, match=r"2-users.* exists already") as refused:
        st.bench(server.url, concurrency=[1, 2], requests=4, out=tmp_path / "o")
    assert refused.value.hint == "choose another --out"
    assert not server.truths


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": [1, 2], "rate": [1, 2]}, "both have several levels"),
        ({"concurrency": [2, 2]}, "--concurrency names a level twice"),
        ({"concurrency": [1, 2], "against": "x.jsonl"}, "compares one level with one trial"),
        ({"concurrency": [1, 2], "trace": "t.csv"}, "a trace has its own times"),
        ({"concurrency": [1, 2], "compat": "vllm"}, "--compat gives one run"),
        ({"concurrency": [1, 0]}, "concurrency"),
    ],
)
def test_levels_that_cannot_run_are_refused_before_anything_is_sent(server, options, said):
    with pytest.raises(InputError, match=said):
        st.bench(server.url, model="m", requests=3, **options)
    assert not server.truths


def baseline_of(tmp_path, *, copies=1, devices=None, **results):
    """File with a trial of a server under eight users."""
    plan = Plan(model=MODEL, replicas=copies)
    config = TrialConfig(client_args={"max_concurrency": 8, "num_prompts": 40,
                                      "input_tokens": "20", "output_tokens": "4"})  # fmt: skip
    numbers = {"max_concurrency": 8, "completed": 40, "failed": 0, "output_throughput": 100.0,
               "mean_e2e_latency_ms": 200.0, **results}  # fmt: skip
    record = TrialRecord(
        key="one", plan=plan, config=config, results=numbers,
        metadata={"model_tag": "m", "gpu_count": devices},
    )  # fmt: skip
    path = tmp_path / "trial.jsonl"
    path.write_text(record.to_json().decode() + "\n")
    return path


def held_against(path, *urls, **options):
    baseline = msgspec.structs.replace(st.Bench().baseline, against=path, **options)
    server = msgspec.structs.replace(st.Bench().server, urls=urls, model="m")
    request = msgspec.structs.replace(st.Bench(), server=server, baseline=baseline)
    asked, expected = reproducing(request)
    return asked.levels()[0].load, expected


def test_several_copies_get_as_many_times_a_copys_load(tmp_path):
    path = baseline_of(tmp_path)
    alone, trial = held_against(path, URL)
    assert (alone.concurrency, alone.requests) == (8, 40)
    assert trial.results["output_throughput"] == 100.0
    for four in (
        held_against(path, URL, copies=4),
        held_against(path, *(f"http://127.0.0.1:{port}" for port in range(9, 13))),
    ):
        load, expected = four
        assert (load.concurrency, load.requests) == (32, 160)
        assert expected.results["max_concurrency"] == 32
        assert expected.results["output_throughput"] == pytest.approx(400 * host_fraction(4))
        assert expected.results["mean_e2e_latency_ms"] == pytest.approx(200 / host_fraction(4))
        assert expected.results["completed"] == 40


def test_only_copies_on_one_machine_take_from_each_other(tmp_path):
    """64 copies on 64 machines are 64 times a copy; all on one would be 82% of that."""

    def per_s(path, *urls, **options):
        return held_against(path, *urls, **options)[1].results["output_throughput"] / 100

    path = baseline_of(tmp_path)
    hosts = [f"http://10.0.0.{number}:8000" for number in range(1, 65)]
    assert per_s(path, *hosts) == 64
    assert per_s(path, *(f"{url[:-4]}{port}" for url in hosts[:2] for port in (8000, 8001))) == (
        pytest.approx(4 * host_fraction(2))
    )
    assert per_s(path, URL, copies=64) == pytest.approx(64 * host_fraction(64))
    assert per_s(path, URL, copies=64, machines=64) == 64
    of_eight = baseline_of(tmp_path, devices=8)  # so one address stands before eight machines
    assert per_s(of_eight, URL, copies=64) == pytest.approx(64 * host_fraction(8))


def test_a_trial_of_as_many_copies_is_sent_as_it_was(tmp_path):
    path = baseline_of(tmp_path, copies=2)
    for urls in ((URL,), (URL, "http://127.0.0.1:10")):
        load, trial = held_against(path, *urls)
        assert (load.concurrency, trial.results["output_throughput"]) == (8, 100.0)
    load, _ = held_against(path, URL, copies=4)
    assert load.concurrency == 16
    server = msgspec.structs.replace(st.Bench().server, urls=(URL,), model="m")
    baseline = msgspec.structs.replace(st.Bench().baseline, against=path, copies=4)
    own = msgspec.structs.replace(st.Bench(), server=server, baseline=baseline, concurrency=(8,))
    with pytest.raises(InputError, match="2 times the trial's load are 16 requests in flight"):
        reproducing(own.levels()[0])

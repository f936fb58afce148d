"""A workload fitted to a log, in every command that takes `--workload`."""

import json
import random

import pytest

import servetune as st

MACHINE = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """File fitted to sixty conversations of one to three turns, about twelve a second."""
    rows, at_s, rng = [], 0.0, random.Random(1)
    for chat in range(60):
        at_s += rng.expovariate(12)
        messages = [{"role": "system", "content": "You are careful. " * 10}]
        for turn in range(1 + chat % 3):
            messages.append({"role": "user", "content": f"{chat} {turn} " + "w " * (9 + chat % 7)})
            tokens = sum(len(each["content"]) for each in messages) // 4
            rows.append(
                {
                    "timestamp": at_s + turn * 0.03,
                    "latency_s": 0.02,
                    "messages": list(messages),
                    "usage": {"prompt_tokens": tokens, "completion_tokens": 4 + chat % 5},
                }
            )
            messages.append({"role": "assistant", "content": "fine"})
    folder = tmp_path_factory.mktemp("fitted")
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    st.fit_log(log, out=folder / "mine.toml")
    return folder / "mine.toml"


def test_estimate_has_its_rate_and_what_its_prompts_share(called, fitted):
    done = called("estimate", *MACHINE, "--workload", fitted)
    assert done.returncode == 0, done.stderr
    assert "mine's lengths" in done.stdout
    assert "of the prompts' tokens" in done.stdout
    assert "requests/s" in done.stdout


def test_simulate_names_its_arrivals_and_plays_its_turns(called, fitted):
    done = called("simulate", *MACHINE, "--workload", fitted)
    assert done.returncode == 0, done.stderr
    assert "at once" not in done.stdout
    assert "120 answered" in done.stdout
    told = json.loads(called("simulate", *MACHINE, "--workload", fitted, "--json").stdout)
    assert told["results"]["server"]["cached_fraction"] > 0.5


def test_bench_sends_its_turns_after_their_answers(called, fake, fitted):
    server = fake()
    done = called("bench", server.url, "--workload", fitted, "-n", 30, "--json", "--warmup", 0)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["results"]
    assert (told["failed"], told["dataset_name"]) == (0, "mine")
    assert told["completed"] == 30
    turns = [sum(m["role"] == "user" for m in body["messages"]) for body in server.bodies]
    assert len(turns) == 30
    assert {1, 2, 3} >= set(turns) > {1}


def test_tune_tries_it_on_the_simulated_engine(fitted, tmp_path):
    found = st.tune(
        engine="simulated",
        model="Qwen/Qwen3-4B",
        gpu="L4",
        server_args="max_num_seqs=[4,16]",
        client_args=f"workload={fitted};num_prompts=40",
        output_json=tmp_path / "r.json",
    )
    assert [trial.results.completed for trial in found.trials] == [40, 40]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, None, "is not TOML"),
        ("request_count = 120", "request_count = 0", "at least one request"),
        ("nodes = [[0, ", "nodes = [[7, ", "node 1 of the prefix"),
        ('kind = "empirical"', 'kind = "empiric"', "empiric"),
        ("weight = 120", "weight = -1", "must be positive"),
        ("rate_per_s = ", "rate_per_s = -", "must be positive"),
    ],
)
def test_a_file_that_was_cut_or_edited_is_refused_by_name(
    called, fitted, tmp_path, before, after, told
):
    text = fitted.read_text()
    path = tmp_path / "edited.toml"
    path.write_text(text[: text.index("tokens = [") + 30] if before is None else
                    text.replace(before, after, 1))  # fmt: skip
    assert path.read_text() != text
    for command in ("simulate", "estimate"):
        done = called(command, *MACHINE, "--workload", path)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert "edited.toml" in done.stderr
        assert told in done.stderr
        assert "hint: " in done.stderr

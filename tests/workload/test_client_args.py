import json

import msgspec
import pytest

from servetune.errors import InputError, UnknownName
from servetune.workload import (
    AllAtOnce,
    LengthLaws,
    Poisson,
    Workload,
    workload_from_client_args,
)


def test_the_published_client_arguments_imitate_sharegpt():
    workload = workload_from_client_args(
        {"max_concurrency": 32, "num_prompts": 1000, "dataset_name": "sharegpt"}
    )
    assert workload.imitated
    assert workload.closed_loop
    requests = workload.requests()
    assert sum(r.input_tokens for r in requests) == 302_118
    assert sum(r.output_tokens for r in requests) == 195_775


def test_random_lengths_and_rates():
    workload = workload_from_client_args(
        {"random_input_len": 8, "random_output_len": 4, "request_rate": 2.5, "num_prompts": 3}
    )
    assert workload.lengths == LengthLaws.fixed(8, 4)
    assert workload.arrivals == Poisson(2.5)
    assert workload_from_client_args({"request_rate": float("inf")}).arrivals == AllAtOnce()
    assert workload_from_client_args({"random_range_ratio": 0.8}).lengths == LengthLaws.ranged(
        1024, 512, 0.8
    )


def test_embeddings_need_no_length_of_answers():
    workload = workload_from_client_args({"api": "embeddings", "num_prompts": 3, "concurrency": 1})
    assert [request.output_tokens for request in workload.requests()] == [1, 1, 1]
    with pytest.raises(InputError, match="no output tokens"):
        workload_from_client_args({"api": "embeddings", "random_output_len": 8})


def test_the_same_workload_asks_the_same_requests():
    args = {"random_range_ratio": 0.5, "request_rate": 3.0, "num_prompts": 50}
    assert workload_from_client_args(args).requests() == workload_from_client_args(args).requests()
    other = workload_from_client_args({**args, "seed": 2})
    assert other.requests() != workload_from_client_args(args).requests()


def test_workloads_round_trip_through_json():
    workload = workload_from_client_args({"dataset_name": "sharegpt", "request_rate": 3.0})
    assert msgspec.json.decode(msgspec.json.encode(workload), type=Workload) == workload
    assert hash(workload) == hash(msgspec.json.decode(msgspec.json.encode(workload), type=Workload))


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"dataset_name": "mmmu"}, UnknownName),
        ({"backend": "truss"}, UnknownName),
        ({"nonsense": 1}, UnknownName),
        ({"lora_name": "x"}, InputError),
        ({"num_prompts": 0}, InputError),
        ({"max_concurrency": 0}, InputError),
        ({"request_rate": -1.0}, InputError),
        ({"dataset_name": "sharegpt", "sharegpt_output_len": 5}, InputError),
    ],
)
def test_arguments_without_meaning_are_refused(args, error):
    with pytest.raises(error):
        workload_from_client_args(args)


class TestNamedWorkloads:
    def test_a_name_says_what_is_asked_and_by_how_many(self):
        workload = workload_from_client_args({"workload": "multi_turn_chat"})
        assert workload.closed_loop
        assert (workload.concurrency, workload.request_count) == (10, 200)
        assert workload.name == "multi_turn_chat"
        assert workload.requests()[1].follows == 0

    def test_users_rate_number_and_seed_may_be_others(self):
        said = {"workload": "rag_document_qa", "num_prompts": 12, "request_rate": 3.0, "seed": 7}
        workload = workload_from_client_args(said)
        assert workload.arrivals == Poisson(3.0)
        assert workload.concurrency is None
        assert len(workload.requests()) == 12
        assert workload.requests()[-1].due_s > 0
        said = {"workload": "rag_document_qa", "max_concurrency": 3}
        assert workload_from_client_args(said).concurrency == 3

    @pytest.mark.parametrize("name", ["dataset_path", "random_input_len", "time_scale"])
    def test_what_it_says_itself_cannot_be_said_again(self, name):
        with pytest.raises(InputError, match=f"{name}|time"):
            workload_from_client_args({"workload": "default", name: "1"})


class TestDataSets:
    ENTRIES = (
        ("What is a roofline model?", "A bound on speed."),
        ("only a question, and no answer", None),
        ("x" * 40, "y" * 400),
        ("hi", "Hello! How can I help?"),
    )

    def load(self, tmp_path, entries=ENTRIES, **args):
        path = tmp_path / "s.json"
        talks = [
            [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
            for question, answer in entries
        ]
        rows = [{"conversations": [turn for turn in talk if turn["value"]]} for talk in talks]
        path.write_text(json.dumps(rows))
        return workload_from_client_args(
            {"dataset_name": "sharegpt", "dataset_path": str(path), **args}
        )

    def lengths(self, workload):
        return [(each.input_tokens, each.output_tokens) for each in workload.requests()]

    def test_sharegpts_short_rows_and_rows_without_an_answer_are_left_out(self, tmp_path):
        asked = self.load(tmp_path, num_prompts=4)
        assert asked.name == "sharegpt"
        assert not asked.imitated
        assert set(self.lengths(asked)) == {(6, 4), (10, 100)}
        assert len(self.lengths(asked)) == 4

    def test_rows_longer_than_the_context_are_left_out(self, tmp_path):
        asked = self.load(tmp_path, num_prompts=2, sharegpt_context_len=100)
        assert self.lengths(asked) == [(6, 4), (6, 4)]

    def test_answers_may_have_one_length(self, tmp_path):
        asked = self.load(tmp_path, num_prompts=9, sharegpt_output_len=7)
        assert {output for _, output in self.lengths(asked)} == {7}

    def test_every_row_is_asked_before_any_is_asked_again(self, tmp_path):
        entries = [("x" * 4 * (i + 2), "y" * 40) for i in range(10)]
        tokens = [n for n, _ in self.lengths(self.load(tmp_path, entries, num_prompts=25))]
        assert sorted(tokens[:10]) == sorted(tokens[10:20]) == list(range(2, 12))
        assert tokens[:10] != sorted(tokens[:10])
        other = self.load(tmp_path, entries, num_prompts=25, seed=2)
        assert [n for n, _ in self.lengths(other)] != tokens

    def test_a_file_without_a_usable_row_is_refused(self, tmp_path):
        with pytest.raises(InputError, match="no row within the length limits"):
            self.load(tmp_path, [("hi", "ho")]).requests()

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError, UnknownName
from servetune.workload import (
    AllAtOnce,
    Fixed,
    Poisson,
    UniformRange,
    Workload,
    workload_from_client_args,
)
from servetune.workload.client_args import length_laws
from servetune.workload.laws import parse_law


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
    assert workload.lengths == Fixed(8, 4)
    assert workload.arrivals == Poisson(2.5)
    assert workload_from_client_args({"request_rate": float("inf")}).arrivals == AllAtOnce()
    assert workload_from_client_args({"random_range_ratio": 0.8}).lengths == UniformRange(
        1024, 512, 0.8
    )


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


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"random_input_len": 512, "random_output_len": 64},
        {"dataset_name": "random", "random_input_len": 800, "random_range_ratio": 0.5},
        {"random_input_len": 900, "random_output_len": 300, "random_input_sd": 50.0},
    ],
)
def test_lengths_can_be_said_to_bench_in_its_own_words(args):
    lengths = workload_from_client_args(args).lengths
    drawn = lengths.draw(4000, np.random.default_rng(1))
    for said, meant in zip(length_laws(args), drawn, strict=True):
        again = parse_law(said).draw(4000, np.random.default_rng(2))
        assert again.mean() == pytest.approx(meant.mean(), rel=0.02)
        assert again.std() == pytest.approx(meant.std(), rel=0.1, abs=0.01)


def test_a_data_set_has_no_law_of_lengths():
    assert length_laws({"dataset_name": "sharegpt"}) is None


class TestNamedWorkloads:
    def test_a_name_says_what_is_asked_and_by_how_many(self):
        workload = workload_from_client_args({"workload": "multi_turn_chat"})
        assert workload.closed_loop
        assert (workload.max_concurrency, workload.request_count) == (10, 200)
        assert workload.dataset == "multi_turn_chat"
        assert workload.requests()[1].follows == 0

    def test_users_rate_number_and_seed_may_be_others(self):
        said = {"workload": "rag_document_qa", "num_prompts": 12, "request_rate": 3.0, "seed": 7}
        workload = workload_from_client_args(said)
        assert workload.arrivals == Poisson(3.0)
        assert workload.max_concurrency is None
        assert len(workload.requests()) == 12
        assert workload.requests()[-1].due_s > 0
        said = {"workload": "rag_document_qa", "max_concurrency": 3}
        assert workload_from_client_args(said).max_concurrency == 3

    @pytest.mark.parametrize("name", ["dataset_name", "random_input_len", "time_scale"])
    def test_what_it_says_itself_cannot_be_said_again(self, name):
        with pytest.raises(InputError, match=f"{name} cannot"):
            workload_from_client_args({"workload": "default", name: "random"})

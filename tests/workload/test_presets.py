import json
import re
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError, UnknownName
from servetune.workload.model_tokenizer import load_model_tokenizer
from servetune.workload.prepare import prepare
from servetune.workload.presets import DEFAULT, preset, preset_names, preset_text
from servetune.workload.workload import workload_of

#: shared/spec/workloads.md: concurrency, input tokens, output tokens, streaming.
TABLE = {
    "multi_turn_chat": (10, 550, 150, True),
    "rag_document_qa": (8, 2048, 256, True),
    "agent_tool_calling": (4, 800, 100, False),
    "long_context_scaling": (2, 8192, 512, True),
    "production_traffic_mix": (16, 1024, 200, True),
    "shared_system_prompt": (12, 300, 150, True),
    DEFAULT: (10, 550, 150, True),
    # Other shapes with published results.
    "jumpstart_256": (32, 256, 256, True),
    "qwen3_walkthrough": (64, 1024, 512, True),
    "replica_study": (100, 1000, 50, True),
    "sharegpt": (32, 302, 196, True),
}


def test_all_are_listed_and_the_default_is_last():
    assert set(preset_names()) == set(TABLE)
    assert preset_names()[-1] == DEFAULT


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("seed", [1, 2])
def test_totals_meet_the_table(name, seed):
    concurrency, input_tokens, output_tokens, stream = TABLE[name]
    traffic = preset(name)
    assert traffic.name == name
    assert (traffic.concurrency, traffic.stream) == (concurrency, stream)
    assert f'"{traffic.summary}"' in preset_text(name)
    about = prepare(msgspec.structs.replace(traffic, seed=seed)).about
    assert about.input_tokens_mean == pytest.approx(input_tokens, rel=0.005)
    assert about.output_tokens_mean == pytest.approx(output_tokens, rel=0.005)
    assert about.requests >= 10 * concurrency


@pytest.mark.parametrize("name", TABLE)
def test_totals_meet_the_table_to_the_tokenizers_token(name, model_folder):
    model = load_model_tokenizer(model_folder("byte_level"))
    made = prepare(preset(name), tokenizer=model)
    counts = [prompt.token_count for prompt in made.prompts]
    assert np.mean(counts) == pytest.approx(TABLE[name][1], rel=0.005)
    first = [i for i, request in enumerate(made.requests) if request.turn == 0][:12]
    for i in first:
        prompt = made.prompts[i]
        if made.workload.api == "completions":
            assert model.counts([prompt.text]) == [prompt.token_count]
            continue
        messages = prompt.messages or ({"role": "user", "content": prompt.text},)
        tools = json.loads(prompt.members)["tools"] if prompt.members else None
        assert model.chat_count(messages, tools) == prompt.token_count


class TestNamesMeanWhatTheySay:
    def test_multi_turn_chat_carries_its_history(self):
        made = prepare(preset("multi_turn_chat"))
        later = [request for request in made.requests if request.turn]
        assert len(later) == 3 / 4 * len(made.requests)
        for request in later:
            before = made.requests[request.follows]
            assert request.prefix[: len(before.prefix)] == before.prefix
            assert (before.answer_id, before.output_tokens) in request.prefix
        assert made.about.hit_fraction > 0.7

    def test_rag_document_qa_asks_about_retrieved_documents(self):
        made = prepare(preset("rag_document_qa"))
        documents = [request.prefix[1:] for request in made.requests]
        assert {len(each) for each in documents} == {4}
        assert 0.7 < np.mean([sum(n for _, n in each) for each in documents]) / 2048 < 0.9
        used = {piece for each in documents for piece in each}
        assert 100 < len(used) < 4 * len(documents)  # some are found again

    def test_agent_tool_calling_sends_tool_schemas(self):
        for prompt in prepare(preset("agent_tool_calling")).prompts:
            body = json.loads(prompt.members)
            assert len(body["tools"]) == 3
            assert body["tool_choice"] == "auto"

    def test_long_context_scaling_is_long_and_shares_nothing(self):
        made = prepare(preset("long_context_scaling"))
        assert {request.input_tokens for request in made.requests} == {8192}
        assert made.about.hit_fraction == 0

    def test_production_traffic_mix_mixes_lengths(self):
        made = prepare(preset("production_traffic_mix"))
        tokens = [request.input_tokens for request in made.requests]
        assert min(tokens) < 300
        assert max(tokens) > 2300
        assert np.std(tokens) > 600
        assert len({prompt.members for prompt in made.prompts}) == 2  # some call tools

    def test_shared_system_prompt_shares_a_prefix(self):
        made = prepare(preset("shared_system_prompt"))
        systems = {prompt.messages[0]["content"] for prompt in made.prompts}
        assert len(systems) == 1
        assert made.about.hit_fraction == pytest.approx(200 / 300, abs=0.01)


def test_a_file_of_ones_own_is_taken(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(preset_text("shared_system_prompt").replace("200", "100"))
    traffic = preset(path)
    assert traffic.name == "mine"
    assert traffic.parts[0].prefix.levels[0].tokens == 100
    assert preset(str(path)) == traffic


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "workloads.md"


def test_the_guides_file_is_a_workload_and_uses_every_kind_of_key():
    (block,) = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    traffic = workload_of(tomllib.loads(block))
    assert [part.name for part in traffic.parts] == ["customers", "invoices", "recorded"]
    assert traffic.needs_chat
    asked = msgspec.structs.replace(traffic, parts=traffic.parts[:2])
    about = prepare(asked).about
    assert about.sessions > 50
    assert about.hit_fraction > 0.3


def test_the_guide_tells_the_workloads_as_they_are():
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \| ([\d,]+) \| (\d+) \| (.*) \|$", GUIDE.read_text(), re.M
    )
    told = {name: tuple(int(n.replace(",", "")) for n in row) for name, *row, _ in rows}
    assert told == {name: row[:3] for name, row in TABLE.items()}
    for name, *_, words in rows:
        for percent in re.findall(r"perfect cache finds (\d+)%", words):
            assert round(prepare(preset(name)).about.hit_fraction * 100) == int(percent)


def test_a_name_that_is_none_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(UnknownName, match="multi_turn") as error:
        preset("multi_turn")
    assert "multi_turn_chat" in error.value.hint
    assert ".toml" in error.value.hint
    with pytest.raises(InputError, match="No such file"):
        preset(tmp_path / "none.toml")
    with pytest.raises(UnknownName):
        preset_text("none")

"""Routes of TGI and SGLang themselves, answered by the simulated server in their forms."""

import itertools

import pytest

from servetune.engines.metrics import exposition_of, read_engine
from servetune.loadgen.sampler import parse_metrics
from servetune.simserver import Faults

TEXT = "how are you today my friend"  # eight tokens without a tokenizer
TGI, SGLANG = {"engine": "tgi"}, {"engine": "sglang"}


def parameters(**more):
    return {"inputs": TEXT, "parameters": {"max_new_tokens": 6, "details": True, **more}}


def sampling(**more):
    return {"text": TEXT, "sampling_params": {"max_new_tokens": 6, **more}}


async def test_a_generation_has_its_text_and_details_where_they_were_asked_for(serving):
    async with serving(**TGI) as client:
        reply = await client().ask("POST", "/generate", parameters())
        plain = await client().ask("POST", "/generate", parameters(details=False))
        openai = await client().ask(
            "POST", "/v1/completions", {"model": "any", "prompt": TEXT, "max_tokens": 6}
        )
    assert reply.status == 200
    assert reply.headers["x-servetune-simulated"] == "1"
    details = reply.json["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 6)
    assert "".join(each["text"] for each in details["tokens"]) == reply.json["generated_text"]
    assert plain.json == {"generated_text": reply.json["generated_text"]}
    assert openai.json["choices"][0]["text"] == reply.json["generated_text"]
    assert openai.json["model"] == "tiny", "TGI answers to any name of a model"


async def test_a_streamed_generation_is_one_event_per_token(serving):
    async with serving(**TGI) as client:
        whole = await client().ask("POST", "/generate", parameters())
        reply = await client().ask("POST", "/generate_stream", parameters())
        by_body = await client().ask("POST", "/", {**parameters(), "stream": True})
    *events, last = reply.events
    assert [event["index"] for event in reply.events] == [1, 2, 3, 4, 5, 6]
    assert all(event["generated_text"] is event["details"] is None for event in events)
    assert last["generated_text"] == whole.json["generated_text"]
    assert "".join(event["token"]["text"] for event in reply.events) == last["generated_text"]
    assert last["details"] == {
        "finish_reason": "length",
        "generated_tokens": 6,
        "seed": None,
        "input_length": 8,
    }
    assert by_body.events == reply.events


async def test_a_generation_ends_by_itself_or_at_a_stop_string(serving):
    async with serving(**TGI, about={"answer_tokens": 30}) as client:
        free = await client().ask("POST", "/generate", parameters(max_new_tokens=None))
        word = free.json["details"]["tokens"][3]["text"].strip()
        stopped = await client().ask("POST", "/generate", parameters(stop=[word]))
    assert free.json["details"]["finish_reason"] == "eos_token"
    assert free.json["details"]["generated_tokens"] == 30
    assert stopped.json["details"]["finish_reason"] == "stop_sequence"
    assert stopped.json["details"]["generated_tokens"] == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"max_new_tokens": 93}, "must be <= 100. Given: 8 `inputs` tokens and 93 `max_new"),
        ({"best_of": 2}, "not simulated"),
    ],
)
async def test_a_generation_that_cannot_be_served_is_refused_as_tgi_refuses_it(
    serving, more, words
):
    async with serving(**TGI, max_model_len=100) as client:
        reply = await client().ask("POST", "/generate", parameters(**more))
        fits = await client().ask("POST", "/generate", parameters(max_new_tokens=92))
    assert (reply.status, reply.json["error_type"]) == (422, "validation")
    assert reply.json["error"].startswith("Input validation error: ")
    assert words in reply.json["error"]
    assert fits.json["details"]["generated_tokens"] == 92


async def test_an_error_on_demand_has_the_form_of_the_route(serving):
    async with serving(**TGI, faults=Faults(error_fraction=1.0)) as client:
        reply = await client().ask("POST", "/generate", parameters())
    assert (reply.status, reply.json["error_type"]) == (500, "generation")


async def test_a_server_that_is_full_refuses_at_once_as_tgi_does(serving):
    limit = {"extra": (("max_concurrent_requests", 1),)}
    # The first answer takes half a second: the others come while it is being written.
    async with serving(speed=4.0, **TGI, **limit) as client:
        first, second, third = client(), client(), client()
        await first.send("POST", "/generate_stream", parameters(max_new_tokens=50))
        streamed = await second.ask("POST", "/generate_stream", parameters())
        openai = await third.ask(
            "POST", "/v1/completions", {"model": "any", "prompt": TEXT, "max_tokens": 6}
        )
        answered = await first.read()
        again = await second.ask("POST", "/generate", parameters())
    assert (streamed.status, streamed.json["error_type"]) == (429, "overloaded")
    assert (openai.status, openai.json["error"]["code"]) == (429, 429)
    assert (answered.status, len(answered.events), again.status) == (200, 50, 200)


async def test_what_a_limit_refuses_is_counted_under_vllms_name(serving):
    async with serving(extra=(("max_num_queued_reqs", 0),)) as client:
        body = {"model": "tiny", "prompt": TEXT, "max_tokens": 6, "stream": True}
        refused = await client().ask("POST", "/v1/completions", body)
        metrics = await client().ask("GET", "/metrics")
    assert (refused.status, refused.json["error"]["type"]) == (503, "Service Unavailable")
    counted = [line for line in metrics.body.decode().splitlines() if "rejections_total{" in line]
    assert [line.rpartition(" ")[2] for line in counted] == ["1.0", "0.0"]
    assert 'reason="max_num_queued_reqs"' in counted[0]


async def test_tgi_tells_its_limits_and_nothing_else_is_served(serving):
    async with serving(**TGI, max_num_seqs=32, max_model_len=4096) as client:
        info = await client().ask("GET", "/info")
        health = await client().ask("GET", "/health")
        posted = await client().ask("POST", "/info", {})
        foreign = await client().ask("GET", "/get_server_info")
    assert (health.status, posted.status, foreign.status) == (200, 405, 404)
    assert info.json["model_id"] == "Qwen/Qwen3-4B"
    assert (info.json["max_total_tokens"], info.json["max_input_tokens"]) == (4096, 4095)
    assert info.json["max_batch_size"] == 32
    assert info.json["max_batch_total_tokens"] > 4096
    assert info.json["simulated"] is True


async def test_vllm_has_none_of_these_routes(serving):
    async with serving() as client:
        for path, body in (("/generate", parameters()), ("/info", None)):
            reply = await client().ask("POST" if body else "GET", path, body)
            assert reply.status == 404


async def test_an_answer_of_sglang_has_all_the_text_so_far(serving):
    async with serving(**SGLANG) as client:
        whole = await client().ask("POST", "/generate", sampling())
        reply = await client().ask("POST", "/generate", {**sampling(), "stream": True})
        ids = {"input_ids": list(range(1000, 1050)), "sampling_params": {"max_new_tokens": 2}}
        counted = await client().ask("POST", "/generate", ids)
    *events, done = reply.events
    assert done == "[DONE]"
    texts = [event["text"] for event in events]
    assert all(later.startswith(sooner) for sooner, later in itertools.pairwise(texts))
    meta = events[-1]["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (8, 6)
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert events[0]["meta_info"]["finish_reason"] is None
    assert whole.json["text"] == texts[-1]
    assert counted.json["meta_info"]["prompt_tokens"] == 50


async def test_sglang_refuses_what_is_longer_than_its_context(serving):
    async with serving(**SGLANG, max_model_len=100) as client:
        reply = await client().ask("POST", "/generate", sampling(max_new_tokens=93))
        fits = await client().ask("POST", "/generate", sampling(max_new_tokens=92))
    assert reply.status == 400
    assert "requested a total of 101 tokens" in reply.json["error"]["message"]
    assert fits.status == 200


async def test_sglang_tells_its_model_and_every_setting(serving):
    async with serving(**SGLANG, prefix_caching=False, max_num_seqs=32) as client:
        model = await client().ask("GET", "/get_model_info")
        server = await client().ask("GET", "/get_server_info")
    assert model.json["model_path"] == "Qwen/Qwen3-4B"
    assert (server.json["tp_size"], server.json["max_running_requests"]) == (1, 32)
    assert server.json["disable_radix_cache"] is True
    assert server.json["simulated"] is True


COUNTED = {
    "tgi": {"running_count": 0, "waiting_count": 0, "prompt_tokens": 16, "output_tokens": 12},
    "sglang": {
        "running_count": 0,
        "waiting_count": 0,
        "kv_usage_fraction": 0,
        "preemption_count": 0,
        "prompt_tokens": 16,
        "output_tokens": 12,
    },
}


@pytest.mark.parametrize("engine", COUNTED)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_metrics_are_counted_under_the_engines_names(serving, engine, replicas):
    body = parameters() if engine == "tgi" else sampling()
    async with serving(engine=engine, replicas=replicas, devices=replicas) as client:
        for _ in range(2):
            await client().ask("POST", "/generate", body)
        scraped = await client().ask("GET", "/metrics")
    text = scraped.body.decode()
    assert "vllm:" not in text
    assert "servetune_simulated_steps_total" in text
    reading = read_engine(parse_metrics(text))
    assert reading.engine == engine
    assert {name: getattr(reading, name) for name in COUNTED[engine]} == COUNTED[engine]
    named = exposition_of(engine)
    for name in (*named.gauges, *named.counters):
        assert f"# TYPE {name} " in text
    for name in named.histograms:
        lines = [line for line in text.splitlines() if line.startswith(f"{name}_count")]
        total = sum(float(line.split()[-1]) for line in lines)
        assert total == (10 if "inter_token" in name else 2), name

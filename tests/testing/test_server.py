import asyncio

import pytest

from servetune.errors import LoadError, ServerRefused
from servetune.loadgen.run import LoadSettings, run_load_blocking
from servetune.loadgen.sampler import parse_metrics
from servetune.loadgen.target import Target, fetch
from servetune.testing import Behaviour, running_server
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import token_prompts
from servetune.workload.workload import Workload


async def load(server, *, requests=8, users=4, tokens=(10, 5)):
    workload = Workload.of(
        LengthLaws.fixed(*tokens), request_count=requests, concurrency=users, warmup_count=0
    )
    prompts = token_prompts(workload.requests(), 4096, seed=1)
    target = Target(base_url=server.url, model="fake")
    settings = LoadSettings(timeout_s=10.0)
    return await asyncio.to_thread(run_load_blocking, target, workload, prompts, settings=settings)


async def test_no_token_leaves_before_its_time():
    behaviour = Behaviour(ttft_s=0.02, itl_s=0.004, prefill_s_per_token=0.001)
    async with running_server(behaviour) as server:
        await load(server)
    for truth in server.truths:
        for i, sent_s in enumerate(truth.sent_s):
            assert sent_s - truth.begun_s >= 0.02 + 10 * 0.001 + i * 0.004 - 1e-6


async def test_more_than_it_serves_at_once_must_wait_their_turn():
    async with running_server(Behaviour(max_num_seqs=2, ttft_s=0.01)) as server:
        result = await load(server, requests=12, users=6)
    assert server.peak_running_count == 2
    assert server.peak_waiting_count == 4
    assert (server.running_count, server.waiting_count) == (0, 0)
    assert {record.outcome for record in result.records} == {"ok"}
    turns_s = [truth.begun_s for truth in server.truths]
    assert turns_s == sorted(turns_s)


async def test_its_metrics_are_what_it_did():
    async with running_server() as server:
        await load(server)
        samples = parse_metrics(await fetch(Target(base_url=server.url, model="x"), "/metrics"))
    values = {key.partition("{")[0]: value for key, value in samples.items()}
    assert values["vllm:prompt_tokens_total"] == 80
    assert values["vllm:generation_tokens_total"] == 40
    assert values["vllm:request_success_total"] == 8
    assert values["vllm:num_requests_running"] == 0


async def test_it_is_not_ready_before_its_time():
    async with running_server(Behaviour(ready_after_s=0.1)) as server:
        target = Target(base_url=server.url, model="x")
        with pytest.raises(ServerRefused) as refused:
            await fetch(target, "/health")
        assert refused.value.status == 503
        await asyncio.sleep(0.1)
        assert await fetch(target, "/health") == ""


async def test_a_dead_server_drops_every_connection_and_takes_no_new_one():
    async with running_server(Behaviour(ttft_s=60.0)) as server:
        loading = asyncio.create_task(load(server))
        while len(server.truths) < 4:  # noqa: ASYNC110 - nothing tells of a request
            await asyncio.sleep(0.005)
        server.die()
        result = await loading
        assert {record.outcome for record in result.records} == {"disconnected", "refused"}
        with pytest.raises(LoadError, match="Connection refused"):
            await fetch(Target(base_url=server.url, model="x"), "/health")


async def test_shares_are_met_and_the_same_seed_draws_the_same_faults():
    drawn = []
    for _ in range(2):
        async with running_server(Behaviour(fail_share=0.25, empty_share=0.25)) as server:
            await load(server, requests=200, tokens=(2, 1), users=1)
        drawn.append([truth.fault for truth in server.truths])
    assert drawn[0] == drawn[1]
    # 200 draws at a quarter: a standard deviation of 6; four of them is the tolerance.
    assert abs(drawn[0].count("fail") - 50) <= 24
    assert abs(drawn[0].count("empty") - 50) <= 24


def test_shares_are_laid_end_to_end():
    behaviour = Behaviour(fail_share=0.5, truncate_share=0.25)
    assert behaviour.fault(0.49) == "fail"
    assert behaviour.fault(0.51) == "truncate"
    assert behaviour.fault(0.76) is None


async def test_a_request_that_it_cannot_read_is_its_clients_mistake():
    async with running_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{")
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()

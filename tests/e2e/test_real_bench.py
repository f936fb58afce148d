"""A real vLLM that runs: what it tells of itself, and `servetune bench` against it on every
route, with token counts that agree to the token.
"""

import json
import os
import urllib.request

import pytest

from servetune.engines import engine
from servetune.engines.translate import plan_from_settings
from servetune.servers import free_port, server_of

pytest.importorskip("tokenizers", reason="pip install 'servetune[tokenizers]'")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    model = os.environ.get("SERVETUNE_TINY_MODEL")
    if not model or not os.environ.get("SERVETUNE_VLLM"):
        pytest.skip("SERVETUNE_VLLM and SERVETUNE_TINY_MODEL name no engine and model")
    folder = tmp_path_factory.mktemp("bench")
    settings = {"max_num_seqs": 16, "enable_prefix_caching": True, "served_model_name": "tiny"}
    settings |= {"max_model_len": 2048, "enforce_eager": True, "dtype": "float32"}
    plan = plan_from_settings("vllm", model, settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        server = server_of(
            engine("vllm"), plan, log_path=folder / "vllm.log", port=free_port("127.0.0.1")
        )
        with server:
            server.wait_ready(300)
            yield server


def bench(servetune, vllm, *words):
    model = os.environ["SERVETUNE_TINY_MODEL"]
    done = servetune("bench", vllm.url, "--tokenizer", model, *words, "--json", timeout_s=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["results"]


def test_it_tells_its_model_and_settings_and_works_in_several_processes(vllm):
    with urllib.request.urlopen(f"{vllm.url}/v1/models", timeout=10) as answer:
        [model] = json.load(answer)["data"]
    assert model["id"] == "tiny"
    assert model["max_model_len"] == 2048
    assert len(vllm.processes()) > 1
    log = vllm.log_path.read_text()
    assert "'max_num_seqs': 16" in log
    assert "'enable_prefix_caching': True" in log


@pytest.mark.parametrize("api", ["completions", "chat", "responses"])
def test_prompts_are_as_long_for_vllm_as_they_were_meant_to_be(servetune, vllm, api):
    lengths = ("--input-tokens", "128", "--output-tokens", "24")
    results = bench(servetune, vllm, "--api", api, "-c", "4", "-n", "24", *lengths)
    assert results["failures"] == []
    assert results["total_input_tokens"] == 24 * 128
    assert results["total_output_tokens"] == 24 * 24
    assert results["server"]["output_tokens"] == 24 * 24
    assert results["server"]["prompt_tokens"] == 24 * 128
    assert results["mean_ttft_ms"] > results["mean_tpot_ms"] > 0


def test_conversations_carry_answers_back_and_the_cache_finds_them(servetune, vllm):
    lengths = ("--input-tokens", "200", "--output-tokens", "16", "--turns", "4")
    results = bench(servetune, vllm, "--api", "chat", "-c", "2", "-n", "16", *lengths)
    assert results["failures"] == []
    server = results["server"]
    assert server["prefix_hits_tokens"] > 0.4 * server["prefix_queries_tokens"]

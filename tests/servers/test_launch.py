import sys

from servetune.engines import engine
from servetune.engines.translate import plan_from_settings
from servetune.plan.plan import Plan
from servetune.servers import launch_environment, server_of


def test_the_users_environment_is_stronger_than_the_engines_and_the_callers_than_both(
    monkeypatch,
):
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    environment = launch_environment(
        engine("vllm"), Plan(model="m"), {"VLLM_CPU_KVCACHE_SPACE": "1"}
    )
    assert environment["VLLM_NO_USAGE_STATS"] == "0"
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "PATH" in environment


def test_a_plan_becomes_a_server_with_the_engines_words(tmp_path):
    plan = plan_from_settings("vllm", "m", {"max_num_seqs": 4})
    server = server_of(
        engine("vllm"),
        plan,
        log_path=tmp_path / "log",
        port=8123,
        executable=(sys.executable, "-m", "v"),
    )
    words = (sys.executable, "-m", "v", "serve", "m", "--host", "127.0.0.1", "--port", "8123")
    assert server.command == (*words, "--tensor-parallel-size=1", "--max-num-seqs=4")
    assert server.url == "http://127.0.0.1:8123"


def test_what_a_plan_says_by_a_variable_is_stronger_than_the_users_own(monkeypatch):
    monkeypatch.setenv("PREFIX_CACHING", "1")
    monkeypatch.setenv("USAGE_STATS", "on")
    plan = Plan(model="m", engine="tgi", prefix_caching=False)
    said = launch_environment(engine("tgi"), plan)
    assert said["PREFIX_CACHING"] == "0"
    assert said["USAGE_STATS"] == "on", "a mere wish of ours"
    silent = launch_environment(engine("tgi"), Plan(model="m", engine="tgi"))
    assert silent["PREFIX_CACHING"] == "1"

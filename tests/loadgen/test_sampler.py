"""The sampler as a process against servers of the standard library."""

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from servetune.errors import InputError
from servetune.loadgen import sampler as sampler_module
from servetune.loadgen import sampling
from servetune.loadgen.sampler import Sampler
from servetune.loadgen.target import Target
from servetune.secret import REDACTED

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"


class Page:
    """What the server answers; may be changed while it serves."""

    def __init__(self, text, status=200, delay_s=0.0, drop=False):
        self.text, self.status, self.delay_s = text, status, delay_s
        self.drop = drop  # the connection after each answer, without a word
        self.seen = []  # (path, headers) of every question


@contextlib.contextmanager
def serving(page, tls=None):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            page.seen.append((self.path, dict(self.headers)))
            time.sleep(page.delay_s)
            body = page.text.encode()
            with contextlib.suppress(OSError):  # who asked may have given up
                self.send_response(page.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            self.close_connection = page.drop

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def target(url, **more):
    return Target(base_url=url, model="tiny", **more)


def golden(name):
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def wait_for(holds):
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def of_kind(side, kind):
    return [each for each in side.series if each.kind == kind]


def test_each_source_is_sampled_on_the_clock_of_requests():
    page = Page(golden("vllm-0.32"))
    with serving(page) as url, Sampler([target(url)], every_s=0.05, cards=()) as sampler:
        assert sampler.wait_ready()
        before_s = time.monotonic()
        seen = len(page.seen)
        page.text = golden("vllm-0.32").replace("12480.0", "14480.0").replace("} 7.0", "} 70.0")
        wait_for(lambda: len(page.seen) > seen + 5)
        side = sampler.stop()
        after_s = time.monotonic()
    (engine,) = of_kind(side, "engine")
    assert (engine.source, engine.label, engine.failed_count) == (url, "vllm", 0)
    assert len(engine.times_s) == len(page.seen)
    assert engine.times_s[0] < before_s < engine.times_s[-1] < after_s
    assert list(engine.times_s) == sorted(engine.times_s)
    assert side.totals.output_tokens == 2000
    assert side.totals.max_running_count == 75
    assert side.totals.scrape_count == len(page.seen)
    (host,) = of_kind(side, "host")
    assert host.values["memory_bytes"][-1] > 1e6
    shares = [share for share in host.values["cpu_use_fraction"] if share is not None]
    assert shares
    assert all(0 <= share <= 1 for share in shares)
    (client,) = of_kind(side, "process")
    assert client.source == "client"
    assert client.values["memory_bytes"][0] > 1e6
    assert sampler.stop() is side


def test_the_word_after_the_load_is_heard():
    page = Page("vllm:generation_tokens_total 5\n")
    with serving(page) as url, Sampler([target(url)], every_s=600, cards=()) as sampler:
        assert sampler.wait_ready()
        page.text = "vllm:generation_tokens_total 105\n"
        assert sampler.stop().totals.output_tokens == 100


def test_a_source_is_asked_out_of_turn():
    page = Page("vllm:generation_tokens_total 5\n")
    with serving(page) as url, Sampler([target(url)], every_s=600, cards=()) as sampler:
        assert sampler.wait_ready()
        page.text = "vllm:generation_tokens_total 45\n"  # a warm-up's
        assert sampler.ask_now()
        start_s = time.monotonic()
        page.text = "vllm:generation_tokens_total 105\n"
        assert sampler.ask_now()
        side = sampler.stop()
    assert side.series[0].values["output_tokens"] == (5.0, 45.0, 105.0, 105.0)
    assert side.totals.output_tokens == 100
    assert side.within(start_s, time.monotonic()).totals.output_tokens == 60


def test_a_server_that_dies_holds_nothing_up():
    alive, mortal = Page(golden("tgi-3")), Page(golden("vllm-0.9"))
    with serving(alive) as url, contextlib.ExitStack() as life:
        dead = life.enter_context(serving(mortal))
        gone = "http://127.0.0.1:1"
        targets = [target(url), target(dead), target(gone)]
        with Sampler(targets, every_s=0.05, cards=()) as sampler:
            assert sampler.wait_ready()
            mortal.status = 503
            asked = len(mortal.seen)
            wait_for(lambda: len(mortal.seen) > asked + 1)
            life.close()
            asked = len(alive.seen)
            wait_for(lambda: len(alive.seen) > asked + 3)
            side = sampler.stop()
    first, second, third = of_kind(side, "engine")
    assert (first.label, first.failed_count) == ("tgi", 0)
    assert second.label == "vllm"
    assert second.failed_count > 0
    assert second.values["running_count"][0] == 12.0
    assert third.times_s == ()
    assert "refused" in third.problem
    assert side.totals.scrape_failed_count == second.failed_count + third.failed_count
    assert side.totals.max_waiting_count == 10


def test_a_server_that_hangs_holds_no_other_up(monkeypatch):
    monkeypatch.setattr(sampler_module, "_SCRAPE_TIMEOUT_S", 0.5)
    alive, stuck = Page(golden("tgi-3")), Page("", delay_s=5.0)
    with contextlib.ExitStack() as life:
        targets = [target(life.enter_context(serving(page))) for page in (stuck, alive)]
        sampler = life.enter_context(Sampler(targets, every_s=0.05, cards=()))
        assert sampler.wait_ready()
        asked = len(alive.seen)
        wait_for(lambda: len(alive.seen) > asked + 3)
        side = sampler.stop()
    assert side.series[0].times_s == ()
    assert "timed out" in side.series[0].problem
    assert side.series[1].failed_count == 0
    assert side.totals.max_running_count == 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# noise\n" * 2_200_000, "more than 16 MiB"),
        (
            'vllm:num_requests_running{engine="0"} 1\n' * 20_000,
            "more than 512 KiB of known metrics",
        ),
    ],
    ids=["noise", "lines of a known name"],
)
def test_a_page_without_end_is_a_failed_scrape(text, words):
    with serving(Page(text)) as url, Sampler([target(url)], every_s=5.0, cards=()) as sampler:
        assert sampler.wait_ready()
        side = sampler.stop()
    (engine,) = of_kind(side, "engine")
    assert (engine.times_s, engine.failed_count > 0) == ((), True)
    assert words in engine.problem
    assert len(engine.problem) <= 300


def test_an_idle_connection_may_be_closed():
    page = Page(golden("tgi-3"), drop=True)
    with serving(page) as url, Sampler([target(url)], every_s=0.05, cards=()) as sampler:
        assert sampler.wait_ready()
        wait_for(lambda: len(page.seen) > 4)
        side = sampler.stop()
    assert side.series[0].failed_count == 0
    assert len(side.series[0].times_s) == len(page.seen)


def test_a_key_comes_from_the_environment_alone(monkeypatch):
    monkeypatch.setenv("SAMPLED_KEY", "s3cret")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    page = Page(golden("sglang-0.5"))
    with serving(page) as url:
        asked = target(f"{url}/tenant/v1", api_key_env="SAMPLED_KEY")
        keyless = target(url, api_key_env="NO_SUCH_KEY")
        with Sampler([asked, keyless], every_s=600, cards=()) as sampler:
            assert sampler.wait_ready()
            command = Path(f"/proc/{sampler._process.pid}/cmdline").read_bytes()
            side = sampler.stop()
    assert {path for path, _ in page.seen} == {"/tenant/metrics"}
    assert {headers["Authorization"] for _, headers in page.seen} == {"Bearer s3cret"}
    assert b"s3cret" not in command
    assert "s3cret" not in repr(side)
    assert side.series[1].problem == "PermissionError: NO_SUCH_KEY holds no key"


def test_tls_is_spoken(monkeypatch, tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    options = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1".split()  # noqa: SIM905
    options += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [openssl, *options, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    with serving(Page(golden("vllm-0.6")), tls) as url:
        with Sampler([target(url)], every_s=600, cards=()) as sampler:
            assert "CERTIFICATE_VERIFY_FAILED" in sampler.stop().series[0].problem
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Sampler([target(url)], every_s=600, cards=()) as sampler:
            assert sampler.stop().totals.max_running_count == 12


def test_dcgm_speaks_for_cards_elsewhere():
    page, text = Page(golden("dcgm-4")), golden("dcgm-4")
    with serving(page) as url, Sampler([], every_s=600, dcgm_url=f"{url}/metrics") as sampler:
        assert sampler.wait_ready()
        page.text = text.replace("7299606661", "7300606661").replace("612.5", "700.0")
        side = sampler.stop()
    assert {path for path, _ in page.seen} == {"/metrics"}
    one, two = of_kind(side, "gpu")
    assert (one.source, two.source) == ("GPU-aaaa", "GPU-bbbb")
    assert one.values["use_fraction"] == pytest.approx((0.95, 0.95))
    assert two.values["use_fraction"] == (None, None)  # DCGM's blank is no number
    assert two.values["memory_bytes"][0] == 3072 * 2**20  # both shares of the split card
    assert two.values["power_w"][0] == 120.0  # the card's, told twice
    assert side.totals.energy_j == pytest.approx(1000.0)
    assert side.totals.max_power_w == pytest.approx(820.0)


def test_a_card_that_is_called_by_a_credential_has_another_name_here():
    page = Page(golden("dcgm-4").replace("GPU-aaaa", "hf_" + "a1B2" * 8))
    with serving(page) as url, Sampler([], every_s=600, dcgm_url=f"{url}/metrics") as sampler:
        assert sampler.wait_ready()
        sources = [each.source for each in of_kind(sampler.stop(), "gpu")]
    assert sorted(sources) == ["GPU-bbbb", REDACTED]


def test_a_process_tree_is_watched_without_those_of_others():
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while 1: pass'])"
    child = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True)
    try:
        wait_for(lambda: len(list(sampling._tree(child.pid, set()))) == 2)
        watched = Sampler([], every_s=0.1, cards=(), processes={"server": child.pid})
        with watched as sampler:
            assert sampler.wait_ready()
            assert child.pid not in set(sampling._tree(os.getpid(), {child.pid}))
            spent = sampling._usage
            below = [p for p in sampling._tree(child.pid, set()) if p != child.pid]
            began_s = spent(below[0])[0]
            wait_for(lambda: spent(below[0])[0] > began_s + 0.2)
            side = sampler.stop()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert side.totals.server_cpu_cores > 0.005  # on a machine where it has little of a core
    server = next(each for each in side.series if each.source == "server")
    assert server.values["memory_bytes"][-1] > 1e6


STARTS_A_SAMPLER = """
import os, signal, sys, time
from servetune.loadgen.sampler import Sampler
sampler = Sampler([], every_s=0.05, cards=())
sampler.start()
sampler.wait_ready()
if os.fork() == 0:  # a worker that inherits the pipes, as those of a run do
    time.sleep(60)
    os._exit(0)
print(sampler._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_when_its_parent_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SAMPLER], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        pid = int(parent.stdout.readline())
        parent.wait()
        wait_for(lambda: _gone(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)  # the worker
        parent.stdout.close()


def _gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_sampler_that_is_killed_costs_no_run():
    with Sampler([], every_s=0.05, cards=()) as sampler:
        assert sampler.wait_ready()
        sampler._process.kill()
        side = sampler.stop()
    assert side.series == ()
    assert "ended early with status -9" in side.problem
    assert "not started" in Sampler([]).stop().problem


@pytest.mark.parametrize("every_s", [0.0, -1.0, float("nan"), 1e9])
def test_intervals_without_meaning_are_refused(every_s):
    with pytest.raises(InputError, match="cannot be scraped"):
        Sampler([], every_s=every_s)


def nvml():
    """NVML of two cards, the second of which tells neither use nor energy."""

    class Unsupported(Exception):
        pass

    def first_alone(answer):
        def ask(handle):
            if handle:
                raise Unsupported
            return answer

        return ask

    return SimpleNamespace(
        NVMLError=Unsupported,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "Card B" if handle else b"Card A",
        nvmlDeviceGetUtilizationRates=first_alone(SimpleNamespace(gpu=50)),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2**30),
        nvmlDeviceGetPowerUsage=lambda _: 250_000,
        nvmlDeviceGetTotalEnergyConsumption=first_alone(9_000),
    )


def test_cards_say_what_they_can(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    machine = sampling.Machine({}, None)
    assert machine.names == ["Card A", "Card B"]
    assert machine()["gpus"] == [[0.5, 2**30, 250.0, 9.0], [None, 2**30, 250.0, None]]
    assert sampling.Machine({}, [1]).names == ["Card B"]
    assert sampling.Machine({}, []).names == []


def test_cards_of_a_client_say_nothing_of_a_server_elsewhere():
    assert list(Sampler([target("http://models.example:80")])._cards) == []
    assert Sampler([target("http://localhost:8000")])._cards is None
    assert Sampler([target("http://[::1]:8000")])._cards is None
    near = target("http://127.0.0.1:8000")
    assert list(Sampler([near], dcgm_url="http://node:9400")._cards) == []

"""Contract of an engine, as tests that anyone may run on one of their own.

    from servetune.testing.engine_contract import EngineContract, RunningEngineContract

    class TestMine(EngineContract):
        engine = MyEngine()

    class TestMineRunning(RunningEngineContract):
        engine = MyEngine()
        model = "path/of/a/small/model"
        settings = {"max_num_seqs": 4}

pytest collects the subclasses. The first needs nothing but the class, the second starts a real
server; it is skipped where the program is not installed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from servetune.engines import Engine, plan_from_settings
from servetune.engines.metrics import read_engine
from servetune.errors import EngineError, PlanError, ServetuneError
from servetune.json_value import JsonMembers
from servetune.plan import Plan, Setting
from servetune.probe import Server, ask
from servetune.servers import free_port, server_of

#: A value for each field of a Plan, unlike what any engine does by itself.
CHOSEN_FIELDS: JsonMembers = {
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "data_parallel": 2,
    "expert_parallel": True,
    "max_num_seqs": 7,
    "max_num_batched_tokens": 1111,
    "max_model_len": 777,
    "gpu_memory_fraction": 0.77,
    "block_tokens": 48,
    "dtype": "bfloat16",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "prefix_caching": False,
    "chunked_prefill": False,
    "enforce_eager": True,
}

_RUBBISH = "\x1b[31mINFO\x1b[0m all is well\r50%\r100%\n\x00\ufffd {'a': }\n"


class _Refused:
    """Message and hint of an expected refusal."""

    message = ""
    hint = ""


@contextlib.contextmanager
def _refusal(kind: type[ServetuneError]) -> Iterator[_Refused]:
    """Require an error, without needing pytest to be installed."""
    refused = _Refused()
    try:
        yield refused
    except kind as error:
        refused.message, refused.hint = error.message, error.hint
    else:
        raise AssertionError(f"no {kind.__name__}")


class EngineContract:
    """Promises that need no server.

    Attributes:
        engine: The one on trial.
        model: Any name; nothing is loaded.
        executable: Words that stand for its program.
    """

    engine: ClassVar[Engine]
    model: ClassVar[str] = "org/model"
    executable: ClassVar[tuple[str, ...]] = ("/opt/engine",)

    def plan(self, **fields: Any) -> Plan:
        return Plan(model=self.model, engine=self.engine.name, **fields)

    def words(self, plan: Plan, *, version: str | None = None) -> tuple[str, ...]:
        return self.engine.command(
            plan, host="127.0.0.1", port=8123, executable=self.executable, version=version
        )

    def test_it_has_a_name_and_a_title(self) -> None:
        assert self.engine.name
        assert self.engine.title
        assert self.engine.ready_path.startswith("/")

    def test_a_program_that_is_missing_is_refused_with_what_installs_it(self) -> None:
        if not self.engine.starts_servers or self.engine.find_executable("echo") == ("echo",):
            return  # nothing to install, or any command will do
        with _refusal(EngineError) as refused:
            self.engine.find_executable(environ={"PATH": os.devnull})
        assert "not installed" in refused.message
        assert refused.hint

    def test_equal_plans_give_equal_commands(self) -> None:
        assert self.words(self.plan()) == self.words(self.plan())
        assert all(self.words(self.plan()))

    def test_the_command_names_program_model_and_port(self) -> None:
        if not self.engine.starts_servers:
            assert self.words(self.plan()) == ()
            return
        words = self.words(self.plan())
        assert words[: len(self.executable)] == self.executable
        assert any(self.model in word for word in words)
        assert any("8123" in word for word in words)

    def test_nothing_that_a_plan_chose_is_lost(self) -> None:
        """Each field changes the command or the environment, or is refused."""
        silent = self.plan()
        before = (self.words(silent), self.engine.environment(silent))
        for field, value in CHOSEN_FIELDS.items():
            values = (True, False) if isinstance(value, bool) else (value,)
            rendered = [self._rendered(**{field: one}) for one in values]
            refused = None in rendered
            assert refused or not self._has_words or any(one != before for one in rendered), field

    def _rendered(self, **fields: Any) -> tuple[tuple[str, ...], dict[str, str]] | None:
        """Command and environment; `None` where the plan is refused, with a way on."""
        plan = self.plan(**fields)
        try:
            return self.words(plan), self.engine.environment(plan)
        except PlanError as error:
            if not error.hint:
                raise
            return None

    @property
    def _has_words(self) -> bool:
        """Whether the engine has a dialect; one without takes all settings as they are."""
        return bool(self.engine.known_arguments)

    def test_what_servetune_decides_is_not_decided_twice(self) -> None:
        if not self.engine.starts_servers or not self._has_words:
            return
        plan = self.plan(extra=(("port", 1),))
        with _refusal(PlanError) as refused:
            self.words(plan)
        assert "decided by servetune" in refused.message

    def test_settings_become_one_word_each(self) -> None:
        assert self.engine.server_cmd_args({"a_b": 4, "text": "x y", "gone": None}) in (
            ["--a-b=4", "--text=x y"],
            ["--a_b=4", "--text=x y"],
            ["--a-b", "4", "--text", "x y"],
        )
        [switch] = self.engine.server_cmd_args({"a_b": True})
        assert switch.startswith("--")
        assert "=" not in switch

    def test_every_known_version_has_settings_with_types(self) -> None:
        for version in self.engine.known_versions:
            table = self.engine.settings(version)
            assert table.version == version
            assert table.exact
            assert table.source
            assert table.settings
            assert set(table.types()) >= set(table.settings)

    def test_an_unknown_setting_is_refused_with_near_names(self) -> None:
        for version in self.engine.known_versions:
            table = self.engine.settings(version)
            near = max(sorted(table.settings), key=len)
            plan = self.plan(extra=((f"{near}x", 1),))
            with _refusal(PlanError) as refused:
                self.engine.check(plan, version=version)
            text = refused.message + refused.hint
            assert f"{near}x" in text
            assert near in text.replace(f"{near}x", "")

    def test_an_unknown_version_is_reported_with_the_one_in_its_place(self) -> None:
        if not self.engine.known_versions or self.engine.settings("99999.0").exact:
            return
        notes = self.engine.check(self.plan(), version="99999.0")
        assert any(self.engine.known_versions[0] in note for note in notes)

    def test_each_command_of_a_known_version_uses_its_own_settings(self) -> None:
        for version in self.engine.known_versions:
            table = self.engine.settings(version)
            for word in self.words(self.plan(max_num_batched_tokens=512), version=version):
                option = word.partition("=")[0]
                if option.startswith("--") and table.complete and self.executable[0] != word:
                    assert table.named(option) or table.named(option.replace("--no-", "--", 1)), (
                        f"{option} is no setting of {version}"
                    )

    def test_any_log_is_explained_and_read(self) -> None:
        for text in ("", _RUBBISH):
            assert self.engine.explain(text, 1).message
            reading = self.engine.read_log(text)
            assert reading.kv_cache_tokens is None
            assert self.engine.taken_settings(text) == reading.taken

    def test_common_ends_are_recognised(self) -> None:
        cause = self.engine.explain("OSError: [Errno 98] Address already in use", 1)
        assert cause.kind == "port_in_use"
        cause = self.engine.explain("CUDA out of memory. Tried to allocate 2.00 GiB", 1)
        assert cause.kind == "out_of_memory"
        assert cause.hint

    def test_what_was_taken_as_asked_is_no_difference(self) -> None:
        assert self.engine.differences(self.plan(), {}) == {}

    def test_its_environment_is_text(self) -> None:
        for name, value in self.engine.environment(self.plan()).items():
            assert isinstance(name, str)
            assert isinstance(value, str)

    def test_the_first_completion_can_be_sent(self) -> None:
        request = self.engine.first_completion("m")
        assert request.path.startswith("/")
        assert json.loads(json.dumps(request.body)) == request.body


class RunningEngineContract:
    """Promises of a real server, started once for each test.

    Attributes:
        engine: Engine under test.
        model: Small model that the engine can load.
        settings: Settings of the server, in the engine's words.
        environment: Environment variables added to the process's.
        given: Program of the engine; `None` for the one that is found.
        ready_timeout_s: Time limit for the start.
        logs_cache_size: Whether its log has the size of its KV cache.
    """

    engine: ClassVar[Engine]
    model: ClassVar[str]
    settings: ClassVar[Mapping[str, Setting]] = {}
    environment: ClassVar[Mapping[str, str]] = {}
    given: ClassVar[str | None] = None
    ready_timeout_s: ClassVar[float] = 300.0
    logs_cache_size: ClassVar[bool] = True

    def test_it_starts_answers_tells_of_itself_and_leaves_nothing(self, tmp_path: Path) -> None:
        executable = self.engine.find_executable(self.given)
        plan = plan_from_settings(self.engine.name, self.model, dict(self.settings))
        version = self.engine.version(executable)
        notes = self.engine.check(plan, version=version, executable=executable)
        server = server_of(
            self.engine,
            plan,
            log_path=tmp_path / "server.log",
            port=free_port(),
            executable=executable,
            environment=self.environment,
        )
        with server:
            server.wait_ready(self.ready_timeout_s)
            self._require_an_answer(server.port, plan)
            self._require_metrics(server.port)
            processes = server.processes()
        assert processes
        assert [pid for pid in processes if _lives(pid)] == []
        reading = self.engine.read_log(server.log_path.read_text(errors="replace"))
        assert not self.logs_cache_size or reading.kv_cache_tokens or reading.kv_cache_blocks
        assert self.engine.differences(plan, reading.taken) == {}, notes

    def test_a_setting_that_it_does_not_have_is_refused_before_and_by_it(
        self, tmp_path: Path
    ) -> None:
        """The table and the program agree that a name is none."""
        executable = self.engine.find_executable(self.given)
        plan = plan_from_settings(self.engine.name, self.model, {"no_such_thing": 1})
        version = self.engine.version(executable)
        refused = False
        try:
            refused = bool(self.engine.check(plan, version=version, executable=executable))
        except PlanError as error:
            refused = "no_such_thing" in error.message
        assert refused
        server = server_of(
            self.engine,
            plan,
            log_path=tmp_path / "server.log",
            port=free_port(),
            executable=executable,
            environment=self.environment,
        )
        with server:
            try:
                server.wait_ready(self.ready_timeout_s)
            except EngineError:
                assert server.cause().kind == "unknown_argument", server.log_tail()
            else:
                raise AssertionError("it started with a setting that it does not have")

    def _require_an_answer(self, port: int, plan: Plan) -> None:
        name = self.engine.served_name(plan)
        if name is None:
            status, body = _ask(port, "GET", "/v1/models", None)
            assert status == 200, body
            name = str(json.loads(body)["data"][0]["id"])
        request = self.engine.first_completion(name)
        status, body = _ask(port, "POST", request.path, request.body)
        assert status == 200, body
        assert body.strip()

    def _require_metrics(self, port: int) -> None:
        if self.engine.metrics_path is None:
            return
        status, body = _ask(port, "GET", self.engine.metrics_path, None)
        assert status == 200, body
        samples = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in body.splitlines()
            if line and not line.startswith("#")
        }
        reading = read_engine(samples)
        assert reading.running_count is not None
        assert reading.output_tokens is not None


def _ask(port: int, method: str, path: str, body: JsonMembers | None) -> tuple[int, str]:
    reply = ask(
        Server("127.0.0.1", port),
        path,
        timeout_s=120,
        method=method,
        headers={"Content-Type": "application/json"},
        body=None if body is None else json.dumps(body).encode(),
    )
    return reply.status, reply.text


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"

"""What servetune answers for a server of which it knows nothing but that it speaks HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.cause import Cause, diagnose
from servetune.engines.engine import FirstCompletion
from servetune.engines.log import LogReading
from servetune.engines.settings import with_underscores
from servetune.plan.plan import Plan, Setting

__all__ = ["Unknown", "plain_arguments"]


def plain_arguments(settings: Mapping[str, Setting]) -> list[str]:
    """Settings as most programs take them: `--name=value`, a bare switch, or nothing."""
    words = []
    for name, value in settings.items():
        option = f"--{with_underscores(name).replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words


class Unknown:
    """The part of an engine's contract that needs knowledge of the engine: there is none."""

    def server_cmd_args(
        self, settings: Mapping[str, Setting], version: str | None = None
    ) -> list[str]:
        return plain_arguments(settings)

    def argument_types(self) -> Mapping[str, type]:
        return {}

    def environment(self, plan: Plan) -> dict[str, str]:
        return {}

    def version(self, executable: tuple[str, ...]) -> str | None:
        return None

    def first_completion(self, model: str) -> FirstCompletion:
        return FirstCompletion(body={"model": model, "prompt": "Hello", "max_tokens": 2})

    def served_name(self, plan: Plan) -> str | None:
        return None

    def explain(self, log_text: str, exit_code: int | None = None) -> Cause:
        return diagnose(log_text, exit_code)

    def read_log(self, log_text: str) -> LogReading:
        return LogReading()

    def taken_settings(self, log_text: str) -> dict[str, Setting]:
        return {}

    def differences(
        self, plan: Plan, taken: Mapping[str, Setting]
    ) -> dict[str, tuple[Setting, Setting]]:
        return {}

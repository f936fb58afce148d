"""A server that exists already: nothing is started, nothing is stopped."""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.engine import Engine
from servetune.engines.settings import SettingTable
from servetune.errors import PlanError
from servetune.plan.plan import Plan


class External(Engine):
    """Somebody else's server at a URL. It has no settings that servetune could change."""

    name = "external"
    model_has_config = False
    title = "an external server"
    starts_servers = False
    ready_path = "/v1/models"

    def settings(
        self, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> SettingTable:
        return SettingTable(version="", source="it is not ours", settings={}, exact=True)

    def check(
        self,
        plan: Plan,
        *,
        version: str | None = None,
        executable: tuple[str, ...] | None = None,
        allow_unknown: bool = False,
    ) -> tuple[str, ...]:
        """Any server setting is refused: the server runs already.

        Raises:
            PlanError: The plan has one.
        """
        if plan.extra:
            raise PlanError(
                f"{plan.extra[0][0]} cannot be set on a server that runs already",
                hint="sweep --client-args, or let servetune start the server",
            )
        return ()

    def find_executable(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        return ()

    def command(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        executable: tuple[str, ...] | None = None,
        version: str | None = None,
    ) -> tuple[str, ...]:
        """No words: nothing is started.

        Raises:
            PlanError: The plan has a server setting.
        """
        self.check(plan)
        return ()

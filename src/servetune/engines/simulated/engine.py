"""The simulated engine as a server: `servetune simulate --serve MODEL`, in vLLM's words."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from servetune import __version__
from servetune.engines.settings import SettingSpec, SettingTable
from servetune.engines.vllm.engine import Vllm
from servetune.plan.plan import Plan

#: Its own options beside the engine's arguments, and of the machine that it plays.
_MACHINE = {
    "gpu": "str",
    "num_gpus": "int",
    "instance": "str",
    "speed": "float",
    "calibration": "str",
}


class Simulated(Vllm):
    """servetune's own: real HTTP, simulated timing. It needs no accelerator, and says so.

    `servetune tune --engine simulated` starts no server: it runs in virtual time. This is the
    server that other tools ask, and that the contract suite holds against a real process.
    """

    name = "simulated"
    simulated_as = ""
    virtual_time = True
    server_words = None
    shipping = None
    image_word = ""
    container_module = ""
    ships_as = "vllm"

    def find_executable(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Python interpreter of this process: the engine is servetune."""
        return (given,) if given else (sys.executable,)

    def version(self, executable: tuple[str, ...]) -> str | None:
        return __version__

    @property
    def known_versions(self) -> tuple[str, ...]:
        """None: it is as old as servetune, and speaks as the newest vLLM that is known."""
        return ()

    def settings(
        self, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> SettingTable:
        """vLLM's, and the machine that is played."""
        table = super().settings()
        own = {name: SettingSpec(name=name, kind=kind) for name, kind in _MACHINE.items()}
        return msgspec.structs.replace(
            table, version=__version__, settings={**table.settings, **own}, exact=True
        )

    def command(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        executable: tuple[str, ...] | None = None,
        version: str | None = None,
    ) -> tuple[str, ...]:
        settings = self.plan_settings(plan, version)
        self._refuse_decided(settings)
        machine = {name: settings.pop(name) for name in _MACHINE if name in settings}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in machine.items()]
        return (
            *(executable or (sys.executable,)),
            *("-m", "servetune", "simulate", "--serve", *words, plan.model),
            *self.address_words(host, port, version),
            *self.server_cmd_args(settings, version),
        )

    def environment(self, plan: Plan) -> dict[str, str]:
        path = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": path} if path else {}

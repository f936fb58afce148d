"""BentoML: a service whose command is the engine's, with BentoML's proxy before it."""

from __future__ import annotations

import json

from servetune.deploy.accelerators import build_for
from servetune.deploy.bundle import Bundle
from servetune.deploy.command import require_command
from servetune.deploy.launchers import deployable_engines, launcher_of, shipping_of
from servetune.deploy.served import Served, bundle_of
from servetune.engines import engine
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.shipping import Build
from servetune.errors import CannotRender
from servetune.json_value import JsonObject

#: First that runs `__command__` of a service.
LEAST_VERSION = "1.4.20"

_SERVICE = '''"""{title}: {label}

Written by `servetune deploy bentoml`; every setting that was tuned is in WORDS.
"""

import bentoml

COMMAND = {command}
WORDS = {words}


@bentoml.service(
    name={name},
    image=bentoml.images.Image(python_version="3.12").requirements_file("requirements.txt"),
    resources={resources},
    traffic={traffic},
    workers=1,
    endpoints={endpoints},
    envs={envs},
)
class Server:
    def __command__(self) -> list[str]:
        """The engine itself; BentoML passes requests on to it."""
        return [*COMMAND, *WORDS]
'''


def render_bentoml(served: Served, *, gpu_type: str | None = None) -> Bundle:
    """A folder that `bentoml serve` and `bentoml deploy` take.

    Args:
        served: Service on port 8000, where BentoML's proxy looks for it.
        gpu_type: BentoCloud's name of the device, such as `nvidia-l4`.

    Raises:
        CannotRender: The engine cannot be installed by a requirement, or a word would be changed.
    """
    require_command(served, "a BentoML service")
    launcher = launcher_of(served.plan)
    require_package(launcher, build_for(launcher, served.device))
    if served.port != 8000:
        raise CannotRender(
            f"BentoML's proxy looks for the engine on port 8000, not {served.port}",
            hint="leave --port out",
        )
    if any("$" in word for word in served.words):
        raise CannotRender("BentoML would replace what follows a $ in the settings")
    resources: JsonObject = {"gpu": served.devices} if served.devices else {}
    if gpu_type:
        resources["gpu_type"] = gpu_type
    traffic: JsonObject = {"timeout": 3600}
    if served.saturation:
        traffic |= {"concurrency": served.saturation.target, "external_queue": False}
    envs: list[dict[str, str]] = [{"name": "HF_TOKEN"}]  # its value is the platform's to know
    envs += [{"name": key, "value": text} for key, text in served.variables.items()]
    service = _SERVICE.format(
        title=served.served_name,
        label=served.plan.label.replace("\\", "\\\\").replace('"""', "'''"),
        command=_literal(list(served.command)),
        words=_literal(list(served.words)),
        name=json.dumps(served.name),
        resources=resources,
        traffic=traffic,
        endpoints={"livez": served.health, "readyz": served.health},
        envs=envs,
    )
    requirements = f"bentoml>={LEAST_VERSION}\n{served.install}\n"
    further = (
        (f"BentoML makes the {served.copies} copies itself: set its scaling to that number",)
        if served.copies > 1
        else ()
    )
    steps = f"""
1. `pip install -r requirements.txt`, and `export HF_TOKEN=...` for a gated model.
2. `bentoml serve service:Server`, or on BentoCloud
   `bentoml deploy . --scaling-min {served.copies} --scaling-max {2 * served.copies}` with
   a secret that holds HF_TOKEN: `--secret huggingface`.
"""
    texts = {"service.py": service, "requirements.txt": requirements}
    return bundle_of(served, "bentoml", texts, steps=steps, further=further)


def require_package(launcher: CommandLineEngine, build: Build | None) -> None:
    """Refuse an engine that a requirement does not install for its device.

    Raises:
        CannotRender: It is no Python package, or its package is for another kind of device.
    """
    shipping = shipping_of(launcher)
    if not shipping.install:
        raise CannotRender(
            f"{launcher.title} is no Python package, which a BentoML service is built from",
            hint=f"deploy it with compose or kubernetes, or choose {_packages()}",
        )
    if build is not shipping.builds[0]:
        raise CannotRender(
            f"the package of {launcher.title} is its build for {shipping.builds[0].kind}, and a "
            "BentoML service is built from packages",
            hint="servetune deploy command runs it on a machine that has the device's build; or "
            "choose another device with --gpu",
        )


def _packages() -> str:
    """Titles of the engines that a requirement installs."""
    found = (engine(name) for name in deployable_engines())
    return " or ".join(one.title for one in found if one.shipping and one.shipping.install)


def _literal(words: list[str]) -> str:
    """A list as Python writes it, a word a line."""
    return "[\n" + "".join(f"    {word!r},\n" for word in words) + "]"

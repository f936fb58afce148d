"""Docker Compose: one service for each copy, each with devices of its own."""

from __future__ import annotations

import ipaddress

from servetune.deploy.bundle import Bundle, documents
from servetune.deploy.command import devices_of
from servetune.deploy.served import MODEL_MOUNT, Served, bundle_of
from servetune.errors import CannotRender
from servetune.json_value import JsonObject

LOOPBACK = "127.0.0.1"
KEY = "SERVER_API_KEY"
"""Variable that holds the key where Compose reads it: `.env`, or the caller's environment."""

_REQUIRED_KEY = f"${{{KEY}:?the ports are open to others, so clients need a key}}"


def render_compose(served: Served, *, publish: str = LOOPBACK) -> Bundle:
    """A `compose.yaml` (Compose specification; `env_file.required` needs Compose 2.24).

    Args:
        served: Service.
        publish: Address of the machine on which the ports are published. Behind any but a
            loopback address the engine asks clients for a key, without which Compose starts
            nothing.

    Raises:
        CannotRender: The address is none, or the engine cannot ask for a key.
    """
    is_open = _is_open(served, publish)
    services = {
        _name_of(served, copy): _service(served, copy, publish, is_open=is_open)
        for copy in range(served.copies)
    }
    volumes: JsonObject = {} if served.folder else {"volumes": {"models": {}}}
    value = {"name": served.name, "services": services, **volumes}
    ports = ", ".join(str(served.port + copy) for copy in range(served.copies))
    key_step = f"""   Clients need a key: `{KEY}=...` in the same file (`openssl rand -hex 32`).
   The engine asks for it, mostly under `/v1` alone, and it is sent in the clear: beyond a trusted
   network put a proxy with TLS before it.
"""
    steps = f"""
1. A gated model needs a token: write `HF_TOKEN=...` into `.env` beside this file, mode 600.
   The file is read when the containers start and is no part of this bundle.
{key_step if is_open else ""}2. `docker compose up -d`, then `docker compose logs -f`
3. The copies answer on ports {ports} of {publish}: `servetune bench` takes all their addresses{
        f" and the key with `--api-key-env {KEY}`" if is_open else ""
    }.
"""
    texts = {"compose.yaml": documents(value, comment=served.plan.label)}
    return bundle_of(served, "compose", texts, steps=steps)


def _name_of(served: Served, copy: int) -> str:
    return served.name if served.copies == 1 else f"{served.name}-{copy + 1}"


def _is_open(served: Served, publish: str) -> bool:
    """Whether others than this machine reach the ports.

    Raises:
        CannotRender: The address is none, or it is open and the engine has no key.
    """
    try:
        is_open = not ipaddress.ip_address(publish).is_loopback
    except ValueError:
        raise CannotRender(
            f"'{publish}' is no address to publish ports on",
            hint="give an IP address of the machine, or 0.0.0.0 for all of them",
        ) from None
    if is_open and not served.api_key_variable and not served.api_key_word:
        raise CannotRender(
            f"{served.title} cannot ask clients for a key, so its ports stay on this machine",
            hint="leave --publish out, and put a proxy that asks for a key before them",
        )
    return is_open


def _service(served: Served, copy: int, publish: str, *, is_open: bool) -> JsonObject:
    service: JsonObject = {"image": served.image}
    if served.command:
        service["entrypoint"] = [_literal(word) for word in served.command]
        service["command"] = [_literal(word) for word in served.words]
    variables = {key: _literal(text) for key, text in served.variables.items()}
    if is_open and served.api_key_variable:
        variables[served.api_key_variable] = _REQUIRED_KEY
    elif is_open:
        service["command"] += [served.api_key_word, _REQUIRED_KEY]
    if _sees_all_devices(served):
        variables |= {served.family.variable: devices_of(served, copy)}
    if variables:
        service["environment"] = variables
    address = f"[{publish}]" if ":" in publish else publish
    mount = f"{served.folder}:{MODEL_MOUNT}:ro" if served.folder else f"models:{served.hub_cache}"
    service |= {
        "env_file": [{"path": ".env", "required": False}],
        "ports": [f"{address}:{served.port + copy}:{served.port}"],
        "volumes": [mount],
        "shm_size": "16gb",
        "restart": "unless-stopped",
        "stop_grace_period": "2m",
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", f"http://localhost:{served.port}{served.health}"],
            "interval": "20s",
            "timeout": "5s",
            "retries": 6,
            "start_period": "1h",
        },
    }
    if served.ulimits:
        service["ulimits"] = dict(served.ulimits)
    numbers = range(copy * served.devices, (copy + 1) * served.devices)
    if served.devices and served.family.files:
        files = [text.format(index=number) for text in served.family.files for number in numbers]
        service["devices"] = [f"{file}:{file}" for file in dict.fromkeys(files)]
        if served.family.groups:
            service["group_add"] = list(served.family.groups)
    elif served.devices:
        gpus = {"driver": "nvidia", "device_ids": [str(one) for one in numbers]}
        devices = [{**gpus, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service


def _sees_all_devices(served: Served) -> bool:
    """Whether a container gets files of all devices, so that a variable limits it to its own."""
    files = served.family.files
    return bool(served.devices and files and not any("{index}" in file for file in files))


def _literal(text: str) -> str:
    """Compose reads $NAME as a variable; $$ stands for a dollar."""
    return text.replace("$", "$$")

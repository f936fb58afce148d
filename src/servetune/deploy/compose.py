"""Docker Compose: one service for each copy, each with devices of its own."""

from __future__ import annotations

from servetune.deploy.bundle import Bundle, documents
from servetune.deploy.served import MODEL_MOUNT, Served, bundle_of
from servetune.json_value import JsonObject


def render_compose(served: Served) -> Bundle:
    """A `compose.yaml` (Compose specification; `env_file.required` needs Compose 2.24)."""
    services = {_name_of(served, copy): _service(served, copy) for copy in range(served.copies)}
    volumes: JsonObject = {} if served.folder else {"volumes": {"models": {}}}
    value = {"name": served.name, "services": services, **volumes}
    ports = ", ".join(str(served.port + copy) for copy in range(served.copies))
    steps = f"""
1. A gated model needs a token: write `HF_TOKEN=...` into `.env` beside this file, mode 600.
   The file is read when the containers start and is no part of this bundle.
2. `docker compose up -d`, then `docker compose logs -f`
3. The copies answer on ports {ports}: `servetune bench` takes all their addresses.
"""
    texts = {"compose.yaml": documents(value, comment=served.plan.label)}
    return bundle_of(served, "compose", texts, steps=steps)


def _name_of(served: Served, copy: int) -> str:
    return served.name if served.copies == 1 else f"{served.name}-{copy + 1}"


def _service(served: Served, copy: int) -> JsonObject:
    service: JsonObject = {"image": served.image}
    if served.command:
        service["entrypoint"] = [_literal(word) for word in served.command]
        service["command"] = [_literal(word) for word in served.words]
    if served.variables:
        service["environment"] = {key: _literal(text) for key, text in served.variables.items()}
    mount = f"{served.folder}:{MODEL_MOUNT}:ro" if served.folder else f"models:{served.hub_cache}"
    service |= {
        "env_file": [{"path": ".env", "required": False}],
        "ports": [f"{served.port + copy}:{served.port}"],
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
    if served.devices and served.accelerators.node:
        nodes = [served.accelerators.node.format(index=number) for number in numbers]
        service["devices"] = [f"{node}:{node}" for node in nodes]
    elif served.devices:
        gpus = {"driver": "nvidia", "device_ids": [str(one) for one in numbers]}
        devices = [{**gpus, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service


def _literal(text: str) -> str:
    """Compose reads $NAME as a variable; $$ stands for a dollar."""
    return text.replace("$", "$$")

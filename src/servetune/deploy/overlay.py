"""Overlays: a user's partial manifests merged into rendered ones, as `kubectl patch` merges them.

Strategic merge patch (Kubernetes API conventions): mappings merge by key, lists whose items have
an identity merge by it, other lists are replaced, `null` takes a key away, and `$patch: delete` or
`$patch: replace` an item or a mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servetune.errors import InputError
from servetune.json_value import JsonObject

#: Keys by which items of a list are the same, by the list's name (`patchMergeKey` of core/v1).
_IDENTITY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
}


def overlaid(manifests: Sequence[JsonObject], overlay: Sequence[JsonObject]) -> list[JsonObject]:
    """Manifests with an overlay merged in; objects of the overlay that none matches are errors.

    Raises:
        InputError: An object of the overlay has no kind or name, or none was rendered.
    """
    merged = list(manifests)
    for patch in overlay:
        kind, name = _identity(patch)
        places = [
            place
            for place, each in enumerate(merged)
            if each["kind"] == kind and name in (None, each["metadata"]["name"])
        ]
        if not places:
            known = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in merged)
            raise InputError(
                f"the overlay changes {kind} {name or ''}".rstrip() + ", which is not rendered",
                hint=f"rendered are {known}; give further objects a file of their own",
            )
        for place in places:
            merged[place] = _merged(merged[place], patch)
    return merged


def _identity(patch: JsonObject) -> tuple[str, str | None]:
    if not isinstance(patch.get("kind"), str):
        raise InputError(
            "an object of the overlay has no kind",
            hint="write partial manifests: kind, metadata.name, and what is to change",
        )
    return patch["kind"], (patch.get("metadata") or {}).get("name")


def _merged(base: Any, patch: Any, name: str = "") -> Any:
    """One value with a patch merged in; `name` is the key that holds it."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return _merged_mapping(base, patch)
    if isinstance(base, list) and isinstance(patch, list) and name in _IDENTITY:
        return _merged_list(base, patch, _IDENTITY[name])
    return patch


def _merged_mapping(base: JsonObject, patch: JsonObject) -> JsonObject:
    patch = dict(patch)
    directive = patch.pop("$patch", "merge")
    if directive == "replace":
        return patch
    if directive == "delete":
        return {}
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(base[key], value, key) if key in base else value
    return merged


def _merged_list(base: list[Any], patch: list[Any], identity: str) -> list[Any]:
    if any(not isinstance(item, dict) for item in (*base, *patch)):
        return patch
    key = identity
    if any(key not in item for item in (*base, *patch)):  # ports of a Service have no such key
        key = "port" if all("port" in item for item in (*base, *patch)) else ""
    if not key:
        return patch
    merged = {item[key]: item for item in base}
    for item in patch:
        if item.get("$patch") == "delete":
            merged.pop(item[key], None)
        else:
            merged[item[key]] = _merged(merged.get(item[key], {}), item)
    return list(merged.values())

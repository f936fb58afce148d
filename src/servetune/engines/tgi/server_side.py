"""Arguments that a TGI server takes, and the places where it tells its settings."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.server_side import ServerWords, SettingsReport

#: Source: TGI 3.x `/info`, read in November 2026; it has the limits alone.
SETTINGS_REPORT = SettingsReport(
    route="/info",
    members=("max_total_tokens", "max_batch_total_tokens"),
    printed=r"\bArgs \{",
    log_marks=(
        "Args {",
        "Setting max batch total tokens",
        "tokens defaulted to",
        "Default `max_",
        "Using prefix caching",
        "prefill chunking =",
        "Cuda Graphs are",
    ),
    line="Args {{ {settings} }}",
    member="{name}: {value}",
    json_values=True,
    model_name="model_id",
)

#: The arguments of `text-generation-launcher`.
SERVER_WORDS = ServerWords(
    spellings=MappingProxyType(
        {"model_id": "model", "hostname": "host", "tokenizer_config_path": "tokenizer"}
    ),
    own=MappingProxyType(
        {
            "waiting_served_ratio": float,
            "max_waiting_tokens": int,
            "max_batch_total_tokens": int,
        }
    ),
)

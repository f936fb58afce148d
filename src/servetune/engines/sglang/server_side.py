"""Arguments that an SGLang server takes, and the places where it tells its settings."""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.server_side import ServerWords, SettingsReport

#: Source: SGLang 0.5 `/get_server_info`, read in November 2026; it has every argument.
SETTINGS_REPORT = SettingsReport(
    route="/get_server_info",
    members=("tp_size",),
    complete=True,
    printed=r"server_args=",
    log_marks=("server_args=", "max_total_num_tokens="),
    line="server_args=ServerArgs({settings})",
    member="{name}={value}",
    model_name="model_path",
)

#: SGLang 0.5 `ServerArgs`.
SERVER_WORDS = ServerWords(
    spellings=MappingProxyType(
        {
            "model_path": "model",
            "tokenizer_path": "tokenizer",
            "random_seed": "seed",
            "tp": "tp_size",
            "tensor_parallel_size": "tp_size",
            "pp": "pp_size",
            "pipeline_parallel_size": "pp_size",
            "dp": "dp_size",
            "data_parallel_size": "dp_size",
        }
    ),
    own=MappingProxyType(
        {
            "schedule_policy": str,
            "schedule_conservativeness": float,
            "max_prefill_tokens": int,
            "enable_mixed_chunk": bool,
            "disable_radix_cache": bool,
            "load_balance_method": str,
        }
    ),
)

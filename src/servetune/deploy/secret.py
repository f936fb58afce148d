"""What must never leave the user's environment: tokens and keys, found and refused.

A container's environment is shown to everyone who may describe the model, and a bundle
is copied, committed and mailed. So a setting that looks like a credential is refused,
and text that came from elsewhere (a command line, a log) is redacted before it is kept.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["REDACTED", "is_secret_name", "looks_secret", "redacted"]

REDACTED = "[redacted]"

#: Hugging Face tokens, AWS access key ids, GitHub and OpenAI style keys.
_TOKENS = re.compile(
    r"hf_[A-Za-z0-9]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
)

_NAMES = re.compile(r"(^|_)(hf_token|hub_token|api_key|secret|secret_key|password|access_token)$")


def looks_secret(text: str) -> bool:
    """Whether a credential's own spelling occurs in the text."""
    return _TOKENS.search(text) is not None


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a credential: `hf_token`, `--api-key`."""
    return _NAMES.search(name.lower().replace("-", "_").strip("_")) is not None


def redacted(value: Any) -> Any:
    """The same JSON value with every credential's text replaced by `REDACTED`."""
    if isinstance(value, str):
        return _TOKENS.sub(REDACTED, value)
    if isinstance(value, dict):
        return {
            redacted(key): REDACTED
            if isinstance(key, str) and is_secret_name(key) and item
            else redacted(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value

"""Credentials: detection and redaction of tokens and keys.

A container's environment is visible to everyone who may describe the model; a bundle, a
journal and an error message are copied, committed and mailed. So a setting that looks like
a credential is refused, and text from outside (a command line, a log, a response) is redacted
before it is stored or printed.
"""

from __future__ import annotations

import functools
import re
from typing import Any

__all__ = ["REDACTED", "is_secret_name", "looks_secret", "redacted", "redacted_text"]

REDACTED = "[redacted]"

#: Credentials recognised by their own format: Hugging Face, AWS key ids, GitHub, GitLab, OpenAI
#: style, NVIDIA NGC, Slack, Google, npm, Docker, signed web tokens, private keys, and user and
#: password of a URL.
_TOKENS = re.compile(
    r"hf_[A-Za-z0-9]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_[A-Za-z0-9_]{30,}"
    r"|glpat-[A-Za-z0-9_-]{20,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\bnpm_[A-Za-z0-9]{36}"
    r"|\bdckr_pat_[A-Za-z0-9_-]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=://)[^\s/@'\"]+(?=@)",
    re.DOTALL,
)

#: Last words of the name of a setting or a variable that holds a credential.
_LAST_WORDS = (
    r"(?:hf|hub|huggingface|auth|bearer|session|security|access|refresh|id|api|github|gitlab|git|"
    r"openai|anthropic|wandb|ngc|nvidia|slack|npm|vault|bot)_token"
    r"|(?:api|secret|secret_access|access|private|ssh|signing|encryption|master|openai|anthropic|"
    r"azure|google|gemini|cohere|mistral|groq|wandb|ngc|nvidia|hf|account|storage)_key"
    r"|apikey|authtoken|accesstoken|secretkey|privatekey"
    r"|secret|password|passwd|passphrase|pgpassword|mysql_pwd|credentials?|connection_string"
)
_SPELT = _LAST_WORDS.replace("_", "[-_]")

#: Credentials without a format of their own, recognised by the words before them, which stay:
#: `--api-key X`, `HF_TOKEN=X`, `'api_key': ['X']`, `Authorization: Bearer X`, `X-Amz-Signature=X`.
_LABELLED = re.compile(
    r"(?i)("
    r"authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+"
    r"|\bbearer\s+(?=[A-Za-z0-9._~+/-]{16})"
    r"|x-amz-(?:signature|security-token|credential)=(?=[^\s&\[])"
    rf"|(?<![a-z0-9])(?:{_SPELT})['\"]?\s*[=:]\s*(?:[\[(]\s*(?=['\"]))?['\"]?(?=[^\s'\"\[{{(,&])"
    rf"|-(?!secret|credential)(?:{_SPELT})\s+(?=[^\s\[-])"
    r")([^\s'\",&\\\]}]+)"
)

_NAMES = re.compile(rf"(^|_)(?:{_LAST_WORDS}|authorization)$")

#: Values that are no credential: nothing, or the name of an environment variable.
_HARMLESS = re.compile(
    r"(?i:null|none|true|false|redacted|''|\"\")|\$[A-Z][A-Z0-9_]*|\$\{[A-Z][A-Z0-9_]*"
)


def looks_secret(text: str) -> bool:
    """Whether the text contains a credential with a recognisable format."""
    return _TOKENS.search(text) is not None


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a credential: `hf_token`, `--api-key`."""
    return _NAMES.search(name.lower().replace("-", "_").strip("_")) is not None


def redacted_text(text: str) -> str:
    """Text with every credential replaced, by its format or by the words before it.

    Example:
        >>> redacted_text("serve m --api-key tiger")
        'serve m --api-key [redacted]'
        >>> redacted_text("X-Api-Key: $TENANT_KEY")
        'X-Api-Key: $TENANT_KEY'
    """
    plain = _TOKENS.sub(REDACTED, text)
    return _LABELLED.sub(
        lambda found: found[0] if _HARMLESS.fullmatch(found[2]) else found[1] + REDACTED, plain
    )


def redacted(value: object) -> Any:
    """JSON value with every credential replaced by `REDACTED`."""
    if isinstance(value, str):
        return _short_redacted(value) if len(value) < _SHORT else redacted_text(value)
    if isinstance(value, dict):
        return {
            redacted(key): REDACTED
            if item and isinstance(key, str) and _short_is_name(key)
            else redacted(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        match value:
            case [str(name), item] if item and is_secret_name(name):  # a pair of name and value
                return [name, REDACTED]
        return [redacted(item) for item in value]
    return value


#: Texts that come again and again, such as the names of a record's fields, are looked at once.
_SHORT = 100
_short_redacted = functools.lru_cache(8192)(redacted_text)
_short_is_name = functools.lru_cache(8192)(is_secret_name)

"""What must never leave the user's environment; see `servetune.secret`."""

from servetune.secret import REDACTED, is_secret_name, looks_secret, redacted

__all__ = ["REDACTED", "is_secret_name", "looks_secret", "redacted"]

"""AWS region of a command: one rule for all that render for AWS or ask it."""

from __future__ import annotations

import os

from servetune.api.notes import note
from servetune.errors import InputError
from servetune.option import option

ASSUMED_REGION = "us-east-1"
"""Region where nothing names one; a note says so."""

#: Variables that name a region, as in the AWS CLI.
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")

REGION = option(
    "AWS region.",
    metavar="NAME",
    default=f"AWS_REGION, AWS_DEFAULT_REGION, the profile's, else {ASSUMED_REGION}",
)
"""Declaration of the option `--region`."""


def region_of(named: str | None, profile: str | None = None) -> str:
    """The region: as named, else of the environment, else of the profile, else `ASSUMED_REGION`.

    Raises:
        InputError: The profile or its file cannot be read.
    """
    found = named or next(filter(None, map(os.environ.get, _VARIABLES)), None)
    found = found or _region_of_profile(profile)
    if not found:
        note(
            f"note: no AWS region is set, and {ASSUMED_REGION} is used; give --region, or set "
            "AWS_REGION"
        )
    return found or ASSUMED_REGION


def _region_of_profile(profile: str | None) -> str | None:
    """Region of boto3's profile; `None` where it has none, or boto3 is not installed."""
    try:
        import botocore.exceptions
        import botocore.session
    except ImportError:
        return None
    try:
        region = botocore.session.Session(profile=profile).get_config_variable("region")
    except botocore.exceptions.BotoCoreError as error:
        raise InputError(f"AWS cannot be asked: {error}", hint="see `aws configure`") from None
    return str(region) if region else None

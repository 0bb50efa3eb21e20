"""Credentials of the profiles in ``~/.aws``, which obstore does not read and boto3 does.

The keeper alone imports boto3.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shardkit.errors import StorageError

_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


def is_anonymous(settings: dict[str, str]) -> bool:
    """Whether requests to S3 are not to be signed."""
    return settings.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1", "yes")


def of_profile(settings: dict[str, str]) -> dict[str, Any]:
    """What a store on S3 is told: where its credentials come from, and where its server is. Nothing
    where the settings have credentials themselves, or no profile has any: then obstore looks for
    those of the machine.

    It is called in an environment of these settings.

    Raises:
        StorageError: there is no such profile, or boto3 is not installed.
    """
    profile = settings.get("AWS_PROFILE")
    if is_anonymous(settings) or "AWS_ACCESS_KEY_ID" in settings:
        return {}
    if not profile and not any(map(_is_there, _FILES, _FILES.values())):
        return {}
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        if not profile:
            return {}
        raise StorageError(
            f"the profile {profile!r} is read by boto3: pip install 'shardkit[cloud]'"
        ) from error
    try:
        session = boto3.Session(profile_name=profile)
        if session.get_credentials() is None:
            return {}
        scoped = session._session.get_scoped_config()  # the one way to a profile's own endpoint
    except BotoCoreError as error:
        raise StorageError(
            f"credentials of the profile {profile or 'default'!r}: {error}"
        ) from error
    told: dict[str, Any] = {"credential_provider": Boto3CredentialProvider(session)}
    if "AWS_ENDPOINT_URL" not in settings and "endpoint_url" in scoped:
        told["endpoint"] = scoped["endpoint_url"]
    return told


def _is_there(variable: str, usual: str) -> bool:
    return Path(os.environ.get(variable) or usual).expanduser().exists()

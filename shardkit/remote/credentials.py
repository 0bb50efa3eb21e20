"""Credentials and addresses that obstore does not find by itself: profiles, and the Hub's.

The cache server alone calls this, in an environment of the caller's settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardkit.errors import StorageError, UsageError
from shardkit.remote.options import settings_of
from shardkit.remote.urls import Url

HUB = "https://huggingface.co"

KINDS = ("datasets", "spaces")
"""First part of a URL of the Hub; without it, the repository is of a model."""

_PROFILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


@contextmanager
def with_environment(settings: dict[str, str]) -> Iterator[None]:
    """Have the caller's settings in place of those that the server was started with."""
    before = settings_of(dict(os.environ))
    for key in before:
        del os.environ[key]
    os.environ.update(settings)
    try:
        yield
    finally:
        for key in settings:
            os.environ.pop(key, None)
        os.environ.update(before)


def s3_options(settings: dict[str, str]) -> dict[str, Any]:
    """Return the credentials and the endpoint of a profile in ``~/.aws``, which boto3 reads. It is
    nothing if the settings have keys, or there is no profile: obstore then asks the machine.

    Raises:
        StorageError: there is no such profile, or boto3 is not installed.
    """
    profile = settings.get("AWS_PROFILE")
    is_anonymous = settings.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1", "yes")
    if is_anonymous or "AWS_ACCESS_KEY_ID" in settings:
        return {}
    files = (Path(os.environ.get(name) or usual) for name, usual in _PROFILES.items())
    if not profile and not any(file.expanduser().exists() for file in files):
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
    found: dict[str, Any] = {"credential_provider": Boto3CredentialProvider(session)}
    if "AWS_ENDPOINT_URL" not in settings and "endpoint_url" in scoped:
        found["endpoint"] = scoped["endpoint_url"]
    return found


def hub_address(url: Url, settings: dict[str, str]) -> str:
    """Return the HTTP address of ``hf://datasets/user/name@revision/folder``, whose files answer
    ranges: https://huggingface.co/docs/hub/en/datasets-downloading

    Raises:
        UsageError: it names no repository.
    """
    parts = urlsplit(url.text)
    words = [parts.netloc, *parts.path.strip("/").split("/")]
    kind = [words.pop(0)] if words[0] in KINDS else []
    if len(words) < 2 or not all(words[:2]):
        raise UsageError(f"{url} names no repository: write hf://datasets/user/name/folder")
    name, _, revision = words[1].partition("@")
    hub = settings.get("HF_ENDPOINT", HUB).rstrip("/")
    return "/".join([hub, *kind, words[0], name, "resolve", revision or "main", *words[2:]])


def hub_token(settings: dict[str, str]) -> str:
    """Return the user's token, from the environment or as ``hf auth login`` keeps it, or ""."""
    home = settings.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    if "HF_TOKEN" in settings:
        return settings["HF_TOKEN"]
    try:
        return Path(settings.get("HF_TOKEN_PATH") or Path(home, "token")).read_text().strip()
    except OSError:
        return ""

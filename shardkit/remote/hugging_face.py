"""Repositories of the Hugging Face Hub: plain HTTP, with a token where one is needed.

Each file has an address that answers ranges, maybe by sending on to another server:
https://huggingface.co/docs/hub/en/datasets-downloading
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from shardkit.errors import UsageError
from shardkit.remote.urls import Url

HUB = "https://huggingface.co"
"""Where ``HF_ENDPOINT`` names no other."""

KINDS = ("datasets", "spaces")
"""What a URL begins with; without, it is of a model."""


def address_of(url: Url, settings: dict[str, str]) -> str:
    """Where the files below ``hf://datasets/user/name@revision/folder`` lie.

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
    where = [hub, *kind, words[0], name, "resolve", revision or "main", *words[2:]]
    return "/".join(where)


def token_of(settings: dict[str, str]) -> str:
    """The user's, of the environment, or as ``hf auth login`` keeps it; or none."""
    home = settings.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    if "HF_TOKEN" in settings:
        return settings["HF_TOKEN"]
    try:
        return Path(settings.get("HF_TOKEN_PATH") or Path(home, "token")).read_text().strip()
    except OSError:
        return ""

"""Multipart uploads to S3 that were begun and never ended: invisible, and paid for.

obstore cannot list them, boto3 can. The keeper alone imports this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from shardkit.remote.causes import said
from shardkit.remote.profiles import is_anonymous
from shardkit.remote.store import with_environment
from shardkit.remote.urls import Url


def abort_unfinished(url: Url, settings: dict[str, str]) -> Callable[[], str]:
    """What aborts those of objects in this folder, and returns a note on what could not be done.

    It waits for the network, so it is to be called in a thread; credentials are found before.
    """
    if not url.text.startswith("s3://"):
        return str
    try:
        client = _client(settings)
    except ImportError:
        return lambda: (
            "parts of interrupted uploads, if there are any, were left in the bucket: boto3 removes"
            " them (pip install 'shardkit[cloud]'), or a lifecycle rule of the bucket"
        )
    parts = urlsplit(url.text)
    prefix = unquote(parts.path).strip("/")
    return lambda: _abort(client, parts.netloc, f"{prefix}/" if prefix else "")


def _client(settings: dict[str, str]) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"max_attempts": 8, "mode": "standard"},
        **({"signature_version": UNSIGNED} if is_anonymous(settings) else {}),
    )
    with with_environment(settings):
        session = boto3.Session(
            region_name=settings.get("AWS_REGION") or settings.get("AWS_DEFAULT_REGION")
        )
        session.get_credentials()
        endpoint = settings.get("AWS_ENDPOINT_URL") or settings.get("AWS_ENDPOINT")
        region = session.region_name or "us-east-1"
        return session.client("s3", endpoint_url=endpoint, region_name=region, config=config)


def _abort(client: Any, bucket: str, prefix: str) -> str:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        pages = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, Prefix=prefix
        )
        for found in [one for page in pages for one in page.get("Uploads", ())]:
            if "/" not in found["Key"].removeprefix(prefix):  # else another dataset's, below ours
                client.abort_multipart_upload(
                    Bucket=bucket, Key=found["Key"], UploadId=found["UploadId"]
                )
    except (BotoCoreError, ClientError) as error:
        return (
            "interrupted uploads could not be looked for, and a lifecycle rule of the bucket should"
            f" remove their parts: {said(error)}"
        )
    finally:
        client.close()
    return ""

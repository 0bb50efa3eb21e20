"""Objects behind a URL, by obstore: the one place that uses the network. And causes of failed
requests, and what a user does about each.

Only the server of a cache imports this, in a process of its own: children that are forked after
obstore was used wait for ever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

from shardkit.errors import ShardMissingError, StorageError, UsageError
from shardkit.index.file_names import INDEX_NAME
from shardkit.remote.urls import (
    ENDPOINTS,
    Url,
    check_endpoint,
    check_keys,
    environment,
    settings_of,
)

SECRET = re.compile(r"(?!.*_(FILE|PATH|URI)$).*(KEY|SECRET|TOKEN|PASS)")
"""Names of variables whose values are secret, and not the path of a file."""

OF_THE_MACHINE = r"/latest/(api|meta-data)/|/computeMetadata/|/metadata/identity/"
"""Services of rented machines that are asked for credentials that are given nowhere."""

WHOLE_OBJECTS = "Received non-partial response|Range request not supported"
HANGS_UP = r"Parse\(|ConnectionReset|IncompleteMessage"
DENIED = re.compile("status code: (401|403)")
UNTOLD = re.compile("status code: 4(?!04|08|25|29)")
"""Answers to HEAD, which has no body, of which a GET brings the reason."""

NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")

ADVICE = {
    OF_THE_MACHINE: "there are no credentials in the environment, and none in a profile, and this"
    " machine has none of its own; a public bucket needs --anonymous, or"
    ' storage_options={"anonymous": True}',
    "Connection refused": "nothing listens there: check the host and the port",
    "dns error": "no such host: check the URL and the endpoint, or what else its name is made of:"
    " AWS_REGION, AZURE_STORAGE_ACCOUNT_NAME",
    "InvalidContentType": "that server speaks no TLS: write http:// in place of https://",
    HANGS_UP: "that server answers nothing that is HTTP: if it speaks TLS, write https://",
    "builder error": "http:// is taken from --endpoint and its variables alone: set one of these",
    "InvalidCertificate": "the certificate of that server is not trusted here",
    WHOLE_OBJECTS: "that server sends whole objects where a range is asked for",
    NO_BUCKET.pattern: "there is no such bucket: check its name, and the endpoint",
    "ExpiredToken|InvalidToken": "renew AWS_SESSION_TOKEN and its two keys",
    "InvalidAccessKeyId|SignatureDoes|Missing (Secret)?AccessKey": "check AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY",
    "HeaderMalformed|PermanentRedirect|t LOCATION": "it is in another region: set AWS_REGION",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "Account must be": "set AZURE_STORAGE_ACCOUNT_NAME",
    "Invalid Access Key": "AZURE_STORAGE_ACCOUNT_KEY is not base64: check it",
    "Authentication(Failed|Info)": "check AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN",
    "service account|invalid_grant": "GOOGLE_APPLICATION_CREDENTIALS names no valid JSON key file",
}
"""Words of an error -> its meaning, or what to do."""

ADVICE_TO_DENIED = {
    "s3": "these credentials may not do that there: check AWS_ACCESS_KEY_ID and its rights",
    "gs": "these credentials may not do that there: check GOOGLE_APPLICATION_CREDENTIALS",
    "az": "these credentials may not do that there: check AZURE_STORAGE_ACCOUNT_KEY and its rights",
    "hf": "set HF_TOKEN to a token that may read it",
}
"""Scheme -> what to do about a 401 or 403 without another reason."""

_SERVERS_WORDS = re.compile(r"(<\?xml|<Error>).*</Error>", re.DOTALL)
"""What object stores answer; beside its code and message are tokens, and addresses."""

_NOISE = re.compile(
    r"^Generic \w+ error: |^The operation lacked [^:]*: |Error performing \w+ request: |\ufeff"
    r"|HTTP error: | in [\d.]+.?s(?= - )|, max_retries: \d+, retry_timeout: \S+"
    r"|Server returned non-2xx status code: "
)

FIRST_S = 5.0
"""How long a command's first request is tried again: the name of the server may be wrong."""

FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=10)

PIECE_BYTES = 8 << 20
"""Of an object that becomes a file, by one request."""


HUB = "https://huggingface.co"

KINDS = ("datasets", "spaces")
"""First part of a URL of the Hub; without it, the repository is of a model."""

_PROFILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}


class ForbiddenError(StorageError):
    """The credentials are not enough."""


class RemoteFolder:
    """What lies behind a URL, by name.

    Attributes:
        REQUEST_S: seconds that one try may take, however slow the server.

    Args:
        settings: variables of the caller's environment. retry_s: how long a request is tried again
            after errors of the server or the network.

    Raises:
        StorageError: the settings make no sense. UsageError: an endpoint is no address.
    """

    REQUEST_S = 60.0
    MAKES_FOLDERS = False

    def __init__(self, url: Url, settings: dict[str, str], retry_s: float) -> None:
        self.url = url
        self._settings = settings
        self._retry_s = retry_s
        self._secrets = [value for key, value in settings.items() if SECRET.match(key) and value]
        self._is_here = url.text.startswith("file:")
        if self._is_here and not self.MAKES_FOLDERS and not os.path.isdir(unquote(url.text[7:])):
            raise ShardMissingError(f"{url}: there is no such folder")
        self._store = self._connect(retry_s)

    @cached_property
    def _place(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the URL as obstore has it, arguments of the store, and options of its client."""
        url, settings = self.url, self._settings
        given = s3_options(settings) if url.text.startswith("s3:") else {}
        client: dict[str, Any] = {"connect_timeout": "10s", "pool_max_idle_per_host": "128"}
        check_keys(settings)
        for name in ENDPOINTS:
            if name in settings:
                check_endpoint(name, settings[name])
        if "endpoint" in given:
            check_endpoint("endpoint_url of the profile", given["endpoint"])
        where = url.text
        if where.startswith("hf:"):
            where, token = hub_address(url, settings), hub_token(settings)
            if token:
                self._secrets.append(token)
                client["default_headers"] = {"Authorization": f"Bearer {token}"}
        servers = [where, given.get("endpoint", ""), *settings.values()]
        if any(server.startswith("http://") for server in servers):
            client["allow_http"] = True
        return where, given, client

    def _connect(self, retry_s: float) -> Any:
        """Return a store of obstore, which makes requests again for so long, those of bodies that
        are cut off among them."""
        from obstore.store import from_url

        changes = dict.fromkeys(settings_of(os.environ)) | self._settings
        with environment(changes), self._errors(f"opening {self.url}"):
            where, given, client = self._place
            if self._is_here:
                return from_url(where, mkdir=self.MAKES_FOLDERS)
            client = client | {"timeout": f"{min(self.REQUEST_S, retry_s)}s"}
            retry = {
                "max_retries": 10_000,
                "retry_timeout": timedelta(seconds=retry_s),
                "backoff": {"init_backoff": FIRST_PAUSE, "max_backoff": LAST_PAUSE, "base": 2},
            }
            given = given | {"client_options": client, "retry_config": retry}
            return from_url(where, **given)

    async def size(self, name: str, *, is_first: bool = False) -> int:
        """Return the bytes of an object. ``is_first``: nothing has been asked of that server by
        this command, so it is not waited for. Errors as of :meth:`read`."""
        what = f"asking for the size of {self.url / name}"
        return int((await self._head(what, name, is_first=is_first))["size"])

    async def _head(self, what: str, name: str, *, is_first: bool = False) -> Any:
        import obstore

        store = self._connect(min(FIRST_S, self._retry_s)) if is_first else self._store
        with self._errors(what):
            try:
                return await obstore.head_async(store, name)
            except Exception as error:
                is_missing = is_first and isinstance(error, FileNotFoundError)  # or the bucket is
                if is_missing or UNTOLD.search(str(error)):
                    await obstore.get_range_async(store, name, start=0, length=1)
                raise

    async def read(self, name: str, start: int, count: int) -> memoryview:
        """Return so many bytes from there on.

        Raises:
            ShardMissingError: there is no such object. StorageError: the network, the server or the
                credentials say no; or the object is shorter.
        """
        import obstore

        if not count:
            return memoryview(b"")
        what = f"reading bytes {start} to {start + count} of {self.url / name}"
        with self._errors(what):
            got = await obstore.get_range_async(self._store, name, start=start, length=count)
        if len(got) != count:
            raise StorageError(f"{what}: got {len(got)} bytes; it may have been replaced")
        return memoryview(got)

    async def list(self) -> list[dict[str, Any]]:
        """Return all objects below."""
        import obstore

        with suppress(ShardMissingError, ForbiddenError):
            await self.size(INDEX_NAME, is_first=True)  # is there such a server at all?
        with self._errors(f"listing {self.url}"):
            return [dict(one) for one in await obstore.list(self._store).collect_async()]

    async def copy_to(self, path: Path, listed: dict[str, Any]) -> None:
        """Write an object to a file, if it is still the one that was listed.

        Raises:
            StorageError: it is not, or as of :meth:`read`.
        """
        import obstore

        name, what, size = listed["path"], f"reading {self.url / listed['path']}", listed["size"]
        with path.open("wb") as file:
            for start in range(0, max(size, 1), PIECE_BYTES):
                stop = min(start + PIECE_BYTES, size)
                options: Any = {"range": (start, stop)} if stop - start < size else {}
                data, found = None, "it vanished (or its key ends in /, which no file's name does)"
                with self._errors(what), suppress(FileNotFoundError):
                    got = await obstore.get_async(self._store, name, options=options)
                    versions = {version_of(got.meta), version_of(listed)} - {""}
                    data, found = memoryview(await got.bytes_async()), "it was replaced"
                    if len(versions) > 1 or got.meta["size"] != size or len(data) != stop - start:
                        data = None
                if data is None:
                    raise StorageError(
                        f"{what}: {found} since it was listed; run the same command again"
                    )
                file.write(data)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (StorageError, UsageError):
            raise
        except Exception as error:
            whole, kind = str(error), StorageError
            if isinstance(error, FileNotFoundError) and not NO_BUCKET.search(whole):
                raise ShardMissingError(f"{what}: there is no such object") from error
            advice = next((do for cause, do in ADVICE.items() if re.search(cause, whole)), "")
            if not advice and DENIED.search(whole):
                scheme, kind = self.url.text.partition(":")[0], ForbiddenError
                advice = ADVICE_TO_DENIED.get(scheme, "web servers get no credentials")
            text = said(error, self._secrets).rstrip(".: ")
            raise kind(f"{what}: {text}{'; ' if advice else ''}{advice}") from error


def version_of(meta: Any) -> str:
    """Return the entity tag of an object, without quotes, and as a strong one: Azure's listings
    leave out the quotes that its other answers have."""
    return (meta["e_tag"] or "").removeprefix("W/").strip('"')


# --- credentials --------------------------------------------------------------------------


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


# --- causes of failed requests ------------------------------------------------------------


def said(error: Exception, secrets: Sequence[str] = ()) -> str:
    """Return what an error says, on one line, without secrets, and queries, which may hold
    signatures."""
    text = _NOISE.sub("", str(error).partition("Debug source:")[0])
    text = re.sub("<[^>]*>", " ", _SERVERS_WORDS.sub(_code_and_message, text))
    for secret in secrets:
        if len(secret) >= 8:  # a shorter one is part of many words: masking these would say it
            words = "|".join(map(re.escape, {secret, escape(secret)}))
            text = re.sub(rf"(?<!\w)({words})(?!\w)", "***", text)
    return re.sub(r"\?[^\s\"')]*", "", " ".join(text.split()))[:500] or type(error).__name__


def _code_and_message(found: re.Match[str]) -> str:
    words = (re.search(rf"<{tag}>([^<\n]*)", found[0]) for tag in ("Code", "Message"))
    return ": ".join(word[1] for word in words if word)

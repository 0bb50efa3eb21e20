"""Causes of failed requests, and what a user does about each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape

SECRET = re.compile(r"(?!.*_(FILE|PATH|URI)$).*(KEY|SECRET|TOKEN|PASS)")
"""Names of variables whose values are secret, and not the path of a file."""

OF_THE_MACHINE = r"/latest/(api|meta-data)/|/computeMetadata/|/metadata/identity/"
"""Where credentials are asked for that are given nowhere: services of rented machines."""

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
"""What an error says -> what it means, or what to do."""

ADVICE_TO_DENIED = {
    "s3": "these credentials may not do that there: check AWS_ACCESS_KEY_ID and its rights",
    "gs": "these credentials may not do that there: check GOOGLE_APPLICATION_CREDENTIALS",
    "az": "these credentials may not do that there: check AZURE_STORAGE_ACCOUNT_KEY and its rights",
    "hf": "set HF_TOKEN to a token that may read it",
}
"""Of each scheme: what to do about a 401 or 403 without another reason."""

_SERVERS_WORDS = re.compile(r"(<\?xml|<Error>).*</Error>", re.DOTALL)
"""What object stores answer; beside its code and message are tokens, and addresses."""

_NOISE = re.compile(
    r"^Generic \w+ error: |^The operation lacked [^:]*: |Error performing \w+ request: |\ufeff"
    r"|HTTP error: | in [\d.]+.?s(?= - )|, max_retries: \d+, retry_timeout: \S+"
    r"|Server returned non-2xx status code: "
)


def advice_on(error: Exception) -> str:
    """Return what to do about an error that says its cause; "" for others."""
    text = str(error)
    return next((advice for pattern, advice in ADVICE.items() if re.search(pattern, text)), "")


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

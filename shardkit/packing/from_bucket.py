"""Sources behind a URL: fetched beside the destination, packed as any folder, and removed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shardkit.errors import UsageError
from shardkit.formats import get_format
from shardkit.packing.spool import Spool
from shardkit.remote.urls import Url


def local_source(url: Url) -> Path | None:
    """Return the folder that a ``file://`` URL means; None for what is in a bucket.

    Raises:
        UsageError: it cannot be listed, or obstore is not installed.
    """
    parts = urlsplit(url.text)
    if parts.scheme in ("http", "https", "hf"):
        raise UsageError(
            f"the source: {url} is read by HTTP, which does not list what there is; copy the files"
            " to this machine, or pack from s3://, gs:// or az://"
        )
    if parts.scheme == "file":
        return Path(unquote(parts.path) or "/")
    if find_spec("obstore") is None:  # only the cache server may import it
        raise UsageError(f"{url} needs the obstore library: pip install 'shardkit[cloud]'")
    return None


def name_of(url: Url) -> str:
    """Return the name of the source: its last folder, or the bucket."""
    parts = urlsplit(url.text)
    return unquote(parts.path.rpartition("/")[2]) or parts.netloc


def own_name(url: Url, to: str) -> str:
    """Return the default destination: the source's name and the format, in the current folder."""
    return f"{name_of(url)}-{get_format(to).name}"


class Fetched(Spool):
    """The folder ``{dest}.spool`` for what is fetched. It stays after an error: what is there is
    not fetched again by the same call."""

    def fetch(self, url: Url) -> Path:
        """Fetch all files of the source into a folder of its name, and return that."""
        from shardkit.remote.cached_storage import ask_place
        from shardkit.remote.urls import default_cache

        folder = self.folder / "fetched" / name_of(url)
        ask_place(url, default_cache(), {"do": "fetch bucket", "folder": str(folder)})
        return folder

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            super().__exit__(*error)
        else:
            self._lock.close()

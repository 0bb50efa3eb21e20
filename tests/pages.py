"""Pages looked at: as a parser reads them, and as a browser draws them."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """What is in a page: tags with their attributes, text, tables, words and the JSON."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.inside: dict[str, list[str]] = {"p": [], "pre": [], "title": [], "style": []}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append((tag, known))
        if tag != "meta":
            self._open.append(tag)
        if known.get("class") == "scroll":
            self._rows = self.tables.setdefault(known["aria-label"] or "", [])
        if tag == "tr":
            self._rows.append([])
        if tag in ("th", "td"):
            self._rows[-1].append("")
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, "tags are not nested"

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        if tag in ("th", "td"):
            self._rows[-1][-1] += data
        if tag in self.inside:
            self.inside[tag][-1] += data

    def table(self, name: str) -> list[dict[str, str]]:
        heads, *lines = self.tables[name]
        return [dict(zip(heads, line, strict=True)) for line in lines]


def assert_nothing_is_loaded(text: str) -> None:
    """A page has no script, no address, and a policy that forbids both."""
    found = Page(text)
    tags = {tag for tag, _ in found.tags}
    assert not tags & {"script", "link", "img", "image", "iframe", "object", "embed", "use", "base"}
    for _, attributes in found.tags:
        assert not attributes.keys() & {"src", "href", "xlink:href", "srcset", "data", "action"}
        assert not [name for name in attributes if name.startswith("on")]
        assert "url(" not in (attributes.get("style") or "") + (attributes.get("fill") or "")
    (style,) = found.inside["style"]
    assert "url(" not in style and "@import" not in style and "@font-face" not in style
    assert not re.search(r"https?:|//\w+\.", text)
    policy = [a["content"] for _, a in found.tags if a.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


LOOK = """<iframe id="f" src="PAGE" style="border:0;width:WIDTHpx;height:6000px"></iframe>
<pre id="out"></pre><script>onload = () => {
  const inner = document.getElementById("f"), page = inner.contentDocument;
  const out = {
    wide: page.documentElement.scrollWidth,
    loaded: inner.contentWindow.performance.getEntriesByType("resource").length,
    title: page.title, scripts: page.scripts.length,
  };
  document.getElementById("out").textContent = JSON.stringify(out);
}</script>"""


def look(path: Path, width: int, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What a browser without a network made of a page, and what it wrote to the console."""
    outer = folder / "outer.html"
    outer.write_text(LOOK.replace("PAGE", path.as_uri()).replace("WIDTH", str(width)))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--allow-file-access-from-files", "--proxy-server=127.0.0.1:9", "--dump-dom"]
    flags += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        ["chromium", *flags, outer.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found and found[1], done.stdout[-2000:]
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text), said

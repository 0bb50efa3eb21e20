"""Which files of a folder are companions of a picture, by their names alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.annotations.track_plan import view_of
from shardkit.inputs.annotations.tracks import is_part
from shardkit.inputs.names import cut_ending, extension
from shardkit.system.paths import show_path

_PHOTOS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})
"""Of two pictures of one stem, ``x.jpg`` and ``x.png``, that which loses nothing is the mask: a
mask is never a JPEG, since classes of pixels would run into one another."""

_WORDS = (
    "masks? segm? segmentations? labels? gt groundtruth depth alpha matte trimap edges? normals?"
    " parts? instances? semantic annotations? superpixels"
)

_SUFFIX = re.compile(
    rf"(?P<stem>.+?)(?P<sign>[_.\- ])(?P<word>({'|'.join(_WORDS.split())})([_-]?[0-9]{{1,4}})?)",
    re.IGNORECASE | re.DOTALL,
)
"""What the stem of a companion is: that of its picture, and what it shows of it."""

MASK = "mask"
"""What the field of ``x.png`` beside ``x.jpg`` is called."""


@dataclass
class Grouped:
    """The files of one folder, by the pictures that they belong to.

    Attributes:
        samples: name of a picture -> (view, name) of its companions, in order of name.
        passed: files that belong to no picture.
        num_suffixed, num_dotted, num_twins: companions as ``x_mask.png``, ``x.mask.png`` and
            ``x.png``.
    """

    samples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    num_suffixed: int = 0
    num_dotted: int = 0
    num_twins: int = 0

    def add(self, picture: str, view: str, name: str) -> None:
        self.samples[picture].append((view, name))


def group_names(names: Sequence[str]) -> Grouped:
    """Which of the files of one folder go together; ``names`` are sorted."""
    pictures: dict[str, list[str]] = {}
    for name in names:
        if extension(name) in IMAGE_EXTENSIONS:
            pictures.setdefault(cut_ending(name)[0], []).append(name)
    grouped = Grouped()
    mains = _mains(pictures)
    grouped.samples = {name: [] for own in mains.values() for name in own}
    for name in names:
        if name not in grouped.samples:
            _add(grouped, name, mains)
    return grouped


def _mains(pictures: dict[str, list[str]]) -> dict[str, list[str]]:
    """Stem -> the pictures of it that are no companions of another."""
    mains = {}
    for stem, names in pictures.items():
        found = _SUFFIX.fullmatch(stem)
        if found is not None and found["stem"] in pictures:
            continue
        photos = [name for name in names if extension(name) in _PHOTOS]
        mains[stem] = photos if len(photos) == 1 else names
    return mains


def _add(grouped: Grouped, name: str, mains: dict[str, list[str]]) -> None:
    """A file that is no picture of its own: to whose sample it belongs."""
    stem = cut_ending(name)[0]
    is_picture = extension(name) in IMAGE_EXTENSIONS
    if stem in mains and (is_picture or is_part(name)):
        grouped.num_twins += is_picture
        grouped.add(_only(mains[stem], name), MASK if is_picture else "", name)
        return
    found = _SUFFIX.fullmatch(stem)
    if found is not None and found["stem"] in mains and is_part(name):
        grouped.num_dotted += is_picture and found["sign"] == "."
        grouped.num_suffixed += is_picture and found["sign"] != "."
        grouped.add(_only(mains[found["stem"]], name), view_of(found["word"]), name)
        return
    before, _, view = stem.rpartition(".")
    if before in mains and not is_picture and is_part(name):  # x.caption.txt
        grouped.add(_only(mains[before], name), view_of(view), name)
        return
    if is_picture:  # beside a mask of a mask
        grouped.samples[name] = []
    else:
        grouped.passed.append(name)


def _only(pictures: Sequence[str], name: str) -> str:
    if len(pictures) > 1:
        one, other = map(show_path, pictures[:2])
        raise CorpusError(
            f"{show_path(name)} may belong to {one} or to {other}, which have one stem; rename one"
        )
    return pictures[0]

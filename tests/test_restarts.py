"""Restart markers put into JPEGs: the same pixels, and the same file when they are taken away."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import simplejpeg
from jpegs import LAYOUTS, jpeg, photo, three_scans, without_segment
from odd_pictures import four_channels
from PIL import Image

from shardkit.errors import BadImageError, UsageError
from shardkit.images import recode, restarts
from shardkit.images.markers import DHT, DRI, SOS, end_of_scan, segments
from shardkit.images.restart_note import Note, find_note, read_note, write_note
from shardkit.images.restarts import Outcome, add_restarts, has_restarts, remove_restarts

pytestmark = pytest.mark.skipif(bool(restarts.why_not()), reason=restarts.why_not())

SIZES = [(1, 1), (8, 8), (17, 9), (9, 200), (97, 96), (250, 131), (401, 30)]
PROGRESSIVE = [name for name in LAYOUTS if name.startswith("progressive")]


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "LEAST_BYTES", 0)
    monkeypatch.setattr(restarts, "LEAST_BYTES_BETWEEN", 0)


def pillow(data: bytes) -> bytes:
    image = Image.open(io.BytesIO(data))
    return f"{image.mode} {image.size} ".encode() + image.tobytes()


def turbo(data: bytes) -> bytes:
    return np.asarray(simplejpeg.decode_jpeg(data)).tobytes()


def added(data: bytes) -> bytes:
    """It with restart markers, after all that must hold of it."""
    made, outcome = add_restarts(data)
    assert outcome is (Outcome.NOTED if has_restarts(data) else Outcome.ADDED)
    assert isinstance(made, bytes) and made != data
    assert pillow(made) == pillow(data)
    assert turbo(made) == turbo(data)
    assert has_restarts(made)
    assert remove_restarts(made) == data
    assert b"".join([remove_restarts(memoryview(made))]) == data
    return made


def left(data: bytes) -> Outcome:
    made, outcome = add_restarts(data)
    assert made is data and outcome not in (Outcome.ADDED, Outcome.NOTED)
    assert not has_restarts(data)
    assert remove_restarts(data) is data
    return outcome


def saved(width: int = 120, height: int = 90, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    photo(width, height).convert(mode).save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


def scan_of(data: bytes) -> bytes:
    scan = segments(data)[-1]
    assert scan.code == SOS
    return data[scan.end : end_of_scan(data, scan.end)]


def sideways() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


# --- what is rewritten -----------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"restarts"}))
def test_every_layout_comes_back(layout: str, size: tuple[int, int]) -> None:
    added(jpeg(*size, layout))


@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"progressive": True}])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(
    "extra",
    [
        {"exif": sideways()},
        {"icc_profile": bytes(range(256)) * 400},
        {"comment": b"a comment"},
        {"dpi": (72, 72), "qtables": "web_high"},
    ],
)
def test_the_header_stays_as_it_is(
    options: dict[str, Any], mode: str, extra: dict[str, Any]
) -> None:
    data = saved(mode=mode, **options, **extra)
    made = added(data)
    assert Image.open(io.BytesIO(made)).info.get("exif") == extra.get("exif")
    frame = data.index(b"\xff\xc2" if "progressive" in options else b"\xff\xc0")
    assert made.startswith(data[:frame])


@pytest.mark.parametrize("tail", [b"\0", b"\xff", b"\xff\xd9", b"trailing" * 99, saved(40, 40)])
@pytest.mark.parametrize("layout", ["420", "progressive"])
def test_what_trails_the_picture_stays(layout: str, tail: bytes) -> None:
    assert added(jpeg(120, 90, layout) + tail).endswith(b"\xff\xd9" + tail)


def test_padding_before_markers_stays() -> None:
    data = jpeg(120, 90)
    scan = data.index(b"\xff\xda")
    padded = data[:2] + b"\xff\xff" + data[2:scan] + b"\xff" * 3 + data[scan:-2] + b"\xff" * 5
    added(padded + data[-2:])


@pytest.mark.parametrize("layout", ["420", "411", "444", "440", "grey"])
def test_segments_are_as_wide_as_said(layout: str) -> None:
    made = added(jpeg(250, 131, layout))
    interval = {"420": 6, "411": 3, "444": 12, "440": 12, "grey": 24}[layout]
    assert made.count(b"\xff\xdd\0\x04" + struct.pack(">H", interval)) == 1
    markers = [scan_of(made)[at + 1] for at in range(len(scan_of(made)) - 1)]
    found = [n for at, n in enumerate(markers) if scan_of(made)[at] == 0xFF and n]
    across, down = {"420": (16, 16), "411": (32, 8), "444": (8, 8)}.get(layout, (8, 8))
    down = 16 if layout == "440" else down
    units = -(-250 // across) * -(-131 // down)
    assert found == [0xD0 + at % 8 for at in range(-(-units // interval) - 1)]


def test_own_markers_that_are_far_apart_give_way() -> None:
    data = saved(320, 200, restart_marker_blocks=7)
    assert b"\xff\xdd\0\x04\0\x07" in data
    assert left(saved(320, 200, restart_marker_blocks=6)) is Outcome.HAS_OWN
    assert left(saved(320, 200, restart_marker_blocks=1)) is Outcome.HAS_OWN
    assert added(data).rindex(b"\xff\xdd\0\x04\0\x06") > data.index(b"\xff\xdd")


def test_what_has_ours_gets_another_note() -> None:
    once = added(jpeg(250, 131))
    twice, outcome = add_restarts(once)
    assert outcome is Outcome.NOTED
    assert 0 < len(twice) - len(once) < 30
    thrice = added(bytes(twice))
    assert remove_restarts(remove_restarts(remove_restarts(thrice))) == jpeg(250, 131)


@pytest.mark.parametrize("interval", [1, 6, 50])
def test_a_progressive_one_with_restart_markers_comes_back(interval: int) -> None:
    data = saved(320, 200, progressive=True, restart_marker_blocks=interval)
    assert b"\xff\xc2" in data and b"\xff\xdd" in data
    assert b"\xff\xc2" not in added(data)


def test_extended_frames_keep_their_name() -> None:
    data = jpeg(120, 90).replace(b"\xff\xc0", b"\xff\xc1", 1)
    assert b"\xff\xc1" in added(data)


def test_tables_with_one_code_for_all_components() -> None:
    data = jpeg(120, 90)
    at = data.index(b"\xff\xda")
    shared = data[: at + 5] + b"\x01\0\x02\0\x03\0" + data[at + 11 :]
    made, outcome = add_restarts(shared)  # other symbols: perhaps damaged, but never changed
    assert remove_restarts(made) == shared
    assert outcome is Outcome.ADDED or made is shared


# --- what is left as it is -------------------------------------------------------------------


def arithmetic() -> bytes:
    data = jpeg(120, 90)
    return data.replace(b"\xff\xc0", b"\xff\xc9", 1)


def with_bits(data: bytes, bits: int) -> bytes:
    at = data.index(b"\xff\xc0")
    return data[: at + 4] + bytes([bits]) + data[at + 5 :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"no picture at all",
        b"\x89PNG\r\n\x1a\n" + bytes(30),
        saved(mode="CMYK"),
        four_channels("420"),
        arithmetic(),
        with_bits(jpeg(60, 40), 12),
        jpeg(60, 40).replace(b"\xff\xc0", b"\xff\xc3", 1),
        jpeg(60, 40).replace(b"\xff\xc0", b"\xff\xc5", 1),
    ],
)
def test_other_kinds_are_left(data: bytes) -> None:
    assert left(data) is Outcome.UNSUITED


def test_a_picture_too_large_to_decode_is_left() -> None:
    data = jpeg(60, 40)
    at = data.index(b"\xff\xc0") + 5
    assert left(data[:at] + b"\xff\x00\xff\x00" + data[at + 4 :]) is Outcome.UNSUITED


def cut(data: bytes) -> list[bytes]:
    scan = data.index(b"\xff\xda")
    return [data[:3], data[: scan - 9], data[: scan + 3], data[: scan + 20], data[:-300], data[:-2]]


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize("layout", ["420", "grey", "progressive"])
def test_what_is_cut_off_is_left(layout: str) -> None:
    for part in [*cut(jpeg(120, 90, layout)), jpeg(120, 90, layout)[:-1]]:
        assert left(part) is Outcome.BROKEN


@pytest.mark.parametrize("marker", [0xC0, 0xDB])
def test_what_lacks_a_header_is_left(marker: int) -> None:
    assert left(without_segment(jpeg(120, 90), marker)) is Outcome.BROKEN


def test_standard_tables_may_be_missing() -> None:
    """As from cameras that film; libjpeg takes the standard's, ours name their own."""
    assert pillow(added(without_segment(jpeg(120, 90), 0xC4))) == pillow(jpeg(120, 90))


def test_scans_apart_are_left() -> None:
    assert left(three_scans(jpeg(120, 90, "grey"))) is Outcome.UNLIKE


def test_other_padding_bits_are_left() -> None:
    for seed in range(20):  # until one has bits to pad with
        data = jpeg(121, 90, seed=seed)
        if data[-3] & 1 and data[-3] != 0xFF:
            break
    assert left(changed(data, len(data) - 3, data[-3] & 0xFE)) in (Outcome.UNLIKE, Outcome.BROKEN)


def test_a_comment_between_progressive_scans_is_left() -> None:
    data = jpeg(120, 90, "progressive")
    at = data.rindex(b"\xff\xda")
    assert left(data[:at] + b"\xff\xfe\0\x05abc" + data[at:]) is Outcome.UNLIKE
    at = data.index(b"\xff\xc4")
    assert left(data[:at] + b"\xff\xfe\0\x05abc" + data[at:]) is Outcome.UNLIKE


def test_a_progressive_one_that_lacks_a_scan_is_left() -> None:
    """Decoders guess the missing bits, which they would not do with a baseline JPEG."""
    data = jpeg(120, 90, "progressive")
    last = data.rindex(b"\xff\xda")
    last = data.rindex(b"\xff\xc4", 0, last)
    short = data[:last] + b"\xff\xd9"
    assert left(short) is Outcome.UNLIKE


def test_too_many_scans_are_left() -> None:
    data = jpeg(120, 90, "progressive-grey")
    end = data.rindex(b"\xff\xda")
    assert left(data[:-2] + data[end:-2] * 150 + data[-2:]) in (Outcome.UNSUITED, Outcome.BROKEN)


def test_small_and_flat_ones_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert left(jpeg(60, 40)) is Outcome.SMALL
    out = io.BytesIO()
    Image.new("RGB", (3000, 2000)).save(out, "JPEG")
    assert len(scan_of(out.getvalue())) > restarts.LEAST_BYTES
    assert left(out.getvalue()) is Outcome.SMALL
    added(jpeg(300, 200))


# --- what is damaged after it was rewritten -------------------------------------------------


def note_at(made: bytes) -> int:
    return made.index(b"shardkit\0") - 4


def tables_missing(made: bytes) -> bytes:
    at = made.index(b"\xff\xc4", note_at(made))
    return made[:at] + made[at + 2 + int.from_bytes(made[at + 2 : at + 4]) :]


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "version": lambda made: changed(made, note_at(made) + 13, 2),
    "length": lambda made: changed(made, note_at(made) + 17, 7),
    "endless": lambda made: changed(made, note_at(made) + 14, 255),
    "checksum": lambda made: changed(made, note_at(made) + 20, made[note_at(made) + 20] ^ 1),
    "no frame": lambda made: changed(made, note_at(made) + 22, 0),
    "cut off": lambda made: made[: note_at(made) + 3] + b"\x0b" + made[note_at(made) + 4 :],
    "tables missing": tables_missing,
    "scan cut off": lambda made: made[:-40],
    "scan gone": lambda made: made[: segments(made)[-1].end],
    "header cut off": lambda made: made[: segments(made)[-1].start],
    "data changed": lambda made: changed(made, len(made) - 60, made[-60] ^ 0x10),
    "scan's header": lambda made: changed(made, segments(made)[-1].start + 4, 200),
    "alone": lambda made: made[:2] + made[note_at(made) : segments(made)[-1].start],
}


@pytest.mark.parametrize("how", HOSTILE)
@pytest.mark.parametrize("layout", ["420", "progressive"])
def test_damage_is_said(how: str, layout: str) -> None:
    made = added(jpeg(250, 131, layout))
    hostile = HOSTILE[how](made)
    assert has_restarts(hostile)
    with pytest.raises(BadImageError, match="shardkit"):
        remove_restarts(hostile)
    again, outcome = add_restarts(hostile)
    assert outcome is Outcome.NOTED
    assert remove_restarts(again) == hostile


@pytest.mark.parametrize(
    "script", [b"", b"\0\0\0\0", b"\x07\0\x3f\xff", b"\xff" * 4, b"\1\0\0\0" * 99]
)
def test_lying_scripts_are_refused(script: bytes) -> None:
    made = added(jpeg(250, 131, "progressive"))
    place = find_note(made, segments(made))
    assert place is not None
    ours = segments(made)[place]
    note = read_note(made, ours)
    behind = ours.start + note.inserted
    lying = Note(note.checksum, note.frame, note.interval, script)
    with pytest.raises(BadImageError):
        remove_restarts(
            made[: ours.start] + write_note(lying, made[ours.end : behind]) + made[behind:]
        )


@pytest.mark.parametrize("layout", ["420", "grey", "progressive", "411"])
def test_mutants_come_back_or_are_left(layout: str) -> None:
    """Whatever a file is, removing gives what was before adding; and the pixels stay."""
    random = np.random.default_rng(zlib.crc32(layout.encode()))
    data = jpeg(120, 90, layout)
    both = [data, bytes(add_restarts(data)[0])]
    rewritten = 0
    for count in range(600):
        mutant = bytearray(both[count % 2])
        for _ in range(random.integers(1, 4)):
            at = random.integers(2, len(mutant) if random.integers(2) else 700)
            mutant[at] = random.choice([0, 1, 255, mutant[at] ^ 1 << random.integers(8)])
        was = bytes(mutant)
        made, outcome = add_restarts(was)
        assert remove_restarts(made) == was
        assert (made is was) == (outcome not in (Outcome.ADDED, Outcome.NOTED))
        try:
            remove_restarts(was)
        except BadImageError:
            continue
        if made is not was:
            rewritten += 1
            assert turbo_or_error(bytes(made)) == turbo_or_error(was)
    assert rewritten > 3


def turbo_or_error(data: bytes) -> bytes | None:
    try:
        return turbo(data)
    except ValueError:
        return None


# --- the compiled module ---------------------------------------------------------------------


def test_libjpeg_is_not_needed_to_look() -> None:
    assert not has_restarts(b"") and not has_restarts(b"\xff\xd8\xff") and not has_restarts(b"PNG")
    assert not has_restarts(jpeg(60, 40) + added(jpeg(60, 40)))  # a thumbnail's are not its own


def test_only_tables_and_interval_stand_behind_the_note() -> None:
    made = added(jpeg(120, 90))
    found = segments(made)
    place = find_note(made, found)
    assert place is not None
    assert {segment.code for segment in found[place + 1 : -1]} == {DHT, DRI}


@pytest.fixture
def made_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """One with restart markers, where the compiled module is not there any more."""

    def compiled() -> None:
        raise ImportError("No module named 'shardkit.images._restarts'")

    made = added(jpeg(60, 40))
    monkeypatch.setattr(recode, "_compiled", compiled)
    restarts.why_not.cache_clear()
    yield made
    restarts.why_not.cache_clear()


def test_where_it_was_not_built_it_says_so(made_before: bytes) -> None:
    assert "gcc python3-dev libjpeg-dev" in restarts.why_not()
    with pytest.raises(UsageError, match="without its compiled module for restart markers"):
        add_restarts(jpeg(60, 40))
    assert has_restarts(made_before)
    with pytest.raises(UsageError, match="without its compiled module for restart markers"):
        remove_restarts(made_before)
    assert remove_restarts(b"anything else") == b"anything else"

"""Turn samples of Python values into named fields of bytes, and put them together.

What a value becomes depends on its name and its type alone, never on other samples, so any worker
makes the same of it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as init_fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardkit.errors import SampleError, UsageError
from shardkit.index.file_names import is_field_name
from shardkit.inputs.guards import LABEL_NAMES, notes_on_labels
from shardkit.inputs.tables.column_fields import (
    HEAD_BYTES,
    MAIN_NAMES,
    ending_of,
    field_base,
)
from shardkit.samples.encoding import is_plain_dtype, npy_header
from shardkit.samples.sample import KEY, SampleBatch, Value, pack_paths

Fields = dict[str, Value]
"""Field name -> canonical value, as a :class:`shardkit.samples.sample.SampleBatch` holds it."""


class Store(NamedTuple):
    """The field and the conversion of values of one name and type.

    Attributes:
        field: the field; ``""`` if it depends on the value, and ``convert`` returns both.
        convert: returns the stored value; None if that is the value itself.
    """

    field: str
    convert: Callable[[Any], Any] | None


_FILE_NAMES = frozenset(name for names in MAIN_NAMES.values() for name in names)
"""Names of a sample's main image, audio or video, whose field is named by what it holds."""

_WORDS = _FILE_NAMES - {"jpg", "jpeg", "png", "webp", "wav", "flac", "mp3", "mp4"}
"""File names that are no endings, so that their bytes decide the field."""

_PNG_MODES = frozenset({"1", "L", "LA", "I;16", "P", "RGB", "RGBA"})
"""Modes of Pillow that a PNG holds without loss."""


@dataclass(frozen=True)
class SampleForm:
    """Rules that map samples to fields. Checked when made, raising UsageError.

    Attributes:
        names: the names of a tuple's values, in order. fields: names that are taken, None for all.
        num_classes: labels must be less than that, if it is known.
        is_reencoded: images will be encoded once more, so that PNG need not compress them.
        is_deferred: images become :class:`Pixels`.
    """

    names: tuple[str, ...] | None = None
    fields: tuple[str, ...] | None = None
    num_classes: int | None = None
    is_reencoded: bool = False
    is_deferred: bool = False
    _stores: dict[tuple[Any, type], Store] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.names is not None and len(set(self.names)) != len(self.names):
            raise UsageError(f"names must differ, got {', '.join(self.names)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without conversions, which are made again."""
        return SampleForm, tuple(getattr(self, own.name) for own in init_fields(self) if own.init)

    def to_json(self) -> dict[str, Any]:
        """Return what was chosen, as plain values."""
        chosen = {"names": self.names, "fields": self.fields}
        return {name: [*value] for name, value in chosen.items() if value is not None}

    def fields_of(self, sample: Any) -> tuple[bytes | None, Fields]:
        """Return a sample's own key (``__key__``), or None, and its fields.

        Raises:
            SampleError: a value cannot be stored, or there is none; names the field.
        """
        named = sample if type(sample) is dict else self._named(sample)
        if self.fields is not None:
            named = {name: own for name, own in named.items() if name in (KEY, *self.fields)}
        key = None
        made: Fields = {}
        for name, value in named.items():
            if value is None:
                continue
            try:
                if name == KEY:
                    key = _key(value)
                    continue
                store = self._stores.get((name, type(value))) or self._choose_store(name, value)
                field, convert = store
                stored = value if convert is None else convert(value)
            except SampleError as error:
                raise SampleError(f"field {name!r} {error}") from error
            if not field:
                field, stored = stored
            if field in made:
                raise SampleError(f"two values are field {field!r}; rename {name!r}")
            made[field] = stored
        if not made:
            raise SampleError("has no value that could be stored")
        return key, made

    def _choose_store(self, name: Any, value: Any) -> Store:
        """Return what stores all values of one name and type."""
        if not isinstance(name, str):
            raise SampleError("has a name that is no text")
        field, _ = _store(name, value, self)
        if not is_field_name(field):
            raise SampleError(f"cannot be stored under {field!r}; use letters, digits, dots and _")
        store = Store("", lambda value: _store(name, value, self))
        if type(value) is bytes and field == name != "cls":
            store = Store(name, None)
        elif type(value) is int and field == "cls":
            store = Store("cls", lambda value: _label(value, self.num_classes))
        self._stores[name, type(value)] = store
        return store

    def plan(self, sample: dict[Any, Any]) -> tuple[Store, ...]:
        """Return how all samples of the names and types of one are stored, once it was; nothing if
        a field depends on more than that."""
        found = [self._stores.get((name, type(value))) for name, value in sample.items()]
        stores = [store for store in found if store is not None and store.field]
        is_whole = len({store.field for store in stores}) == len(found)
        return tuple(stores) if is_whole else ()

    def _named(self, sample: Any) -> Mapping[Any, Any]:
        if isinstance(sample, Mapping):
            return sample
        if self.names is None and hasattr(sample, "_asdict"):  # a named tuple
            named: dict[str, Any] = sample._asdict()
            return named
        values, names = sample if isinstance(sample, tuple | list) else (sample,), self.names
        if names is None and len(values) == 2 and _is_integer(values[1]):
            names = (_name_of(values[0]), "cls")
        if not names or not names[0]:
            if values is not sample:
                raise SampleError(
                    f'is a {type(sample).__name__}; say what it is, as in names=("txt",), or'
                    " return a dict, as vars(sample) makes of a dataclass"
                )
            types = ", ".join(type(value).__name__ for value in sample)
            raise SampleError(
                f"is a {type(sample).__name__} of {types}; say what they are, as in"
                ' names=("jpg", "cls"), or return a dict'
            )
        if len(names) != len(values):
            raise SampleError(f"has {len(values)} values, and names has {len(names)}")
        return dict(zip(names, values, strict=True))


def labels_not_taken(fields: Iterable[str]) -> list[str]:
    """Return notes on fields that are named as labels, and are none."""
    return notes_on_labels(filter(None, [name.rpartition(".")[0] for name in fields]))


def _key(key: Any) -> bytes:
    try:
        made = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    except UnicodeEncodeError as error:
        raise SampleError(f"is not valid Unicode: {key!r}") from error
    is_good = isinstance(made, bytes) and made and b"\0" not in made and made[:1] != b"/"
    if not is_good or b".." in made.split(b"/"):
        raise SampleError(f"must be a text, and no absolute path or one with '..', got {key!r}")
    return made


def _name_of(value: Any) -> str:
    """Return the name of what has a class and no name; "" if that is no text, file or array."""
    if isinstance(value, bytes | bytearray | memoryview | os.PathLike) or _is_image(value):
        return "image"
    return "text" if isinstance(value, str) else "npy" if getattr(value, "shape", ()) else ""


def _is_integer(value: Any) -> bool:
    if getattr(value, "shape", None) == () and not isinstance(value, np.generic):
        value = value.item()  # of an array, or a tensor of torch
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_image(value: Any) -> bool:
    """Return True for an image of Pillow, which need not be imported to tell."""
    return any(
        made.__module__ == "PIL.Image" and made.__name__ == "Image" for made in type(value).__mro__
    )


# --- one value ----------------------------------------------------------------------------


def _store(name: str, value: Any, form: SampleForm) -> tuple[str, Value]:
    if isinstance(value, bytes | bytearray | memoryview):
        data = value if isinstance(value, bytes) else bytes(value)
        if name == "cls":
            if not data.strip().removeprefix(b"-").isdigit():
                raise SampleError(f"is {data[:40]!r}, which is no whole number")
            _label(int(data), form.num_classes)
        return _by_content(name, data, None), data
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, os.PathLike):
        return _file(name, Path(value))
    if name in LABEL_NAMES and _is_integer(value):
        return "cls", _label(int(value), form.num_classes)
    if isinstance(value, np.ma.MaskedArray):
        raise SampleError("is a masked array; store value.filled(...), and the mask by itself")
    if isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
        return _array(name, np.asarray(value))
    if _is_image(value):
        return _image(name, value, form)
    if isinstance(value, dict | list | tuple):
        return _ended(name, "json"), _json(value)
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor of torch
        try:
            return _array(name, value.detach().cpu().numpy())
        except TypeError as error:  # bfloat16, or sparse
            raise SampleError(f"is a tensor that numpy cannot hold: {error}") from error
    raise SampleError(
        f"is a {type(value).__module__}.{type(value).__qualname__}; store bytes, a text, numbers,"
        " an array, a tensor, an image, a path, or what JSON can hold"
    )


def _ended(name: str, ending: str) -> str:
    """Return the field of a value of that name: its name tells what it holds, or ends in it."""
    if name == ending or name.endswith(f".{ending}"):
        return name
    return f"{field_base(name)}.{ending}"


def _by_content(name: str, value: Value, path: str | None) -> str:
    """Return the field of a file's bytes: by what it holds if the name does not tell."""
    if path is None and name not in _WORDS:
        return name
    ending = ending_of(bytes(value[:HEAD_BYTES]), path)
    return ending if name in _FILE_NAMES else _ended(name, ending)


def _text(name: str, value: str) -> tuple[str, Value]:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise SampleError(f"is a text that is not valid Unicode: {error.reason}") from error
    if name in ("text", "txt"):
        return "txt", data
    if name == "json" or name.endswith(".json"):
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SampleError(f"is not JSON: {error}") from error
        return name, data
    if name in LABEL_NAMES:
        raise SampleError(
            f"is the text {value[:40]!r}, and labels are whole numbers; number the classes, and"
            " pass classes= with their names"
        )
    return _ended(name, "txt"), data


def _file(name: str, path: Path) -> tuple[str, Value]:
    try:
        data = path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise SampleError(f"names {path}, which cannot be read: {error.strerror}") from error
    if data is None:
        raise SampleError(f"names {path}, which is no file")
    return _by_content(name, data, str(path)), data


def _label(number: int, num_classes: int | None) -> bytes:
    if abs(number) >= 10**18:  # an index reads no more digits
        raise SampleError(f"is class {number}, and a class has at most 18 digits")
    if num_classes is not None and not 0 <= number < num_classes:
        raise SampleError(f"is class {number}, and there are {num_classes}")
    return b"%d" % number


def _array(name: str, array: Any) -> tuple[str, Value]:
    if not is_plain_dtype(array.dtype):
        raise SampleError(f"is an array of {array.dtype}, which only pickle could store")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    shape = array.shape
    data = npy_header(array.dtype.str, shape) + np.ascontiguousarray(array).tobytes()
    return _ended(name, "npy"), data


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, default=_in_json).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleError(f"holds what JSON cannot: {error}") from error


def _in_json(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


def _image(name: str, image: Any, form: SampleForm) -> tuple[str, Value]:
    if image.mode not in _PNG_MODES:
        raise SampleError(
            f"is an image of mode {image.mode}, which PNG cannot hold; return"
            " image.convert('RGB'), or numpy.asarray(image)"
        )
    field = "png" if name in _FILE_NAMES else _ended(name, "png")
    level = {"compress_level": 0} if form.is_reencoded or form.is_deferred else {}
    try:
        data = _png(image, **level)
    except (OSError, ValueError, SyntaxError, SystemError) as error:  # as Pillow loads it now
        raise SampleError(f"is an image that cannot be read or encoded: {error}") from error
    return field, Pixels(data) if form.is_deferred else data


class Pixels(bytes):
    """A PNG that is not compressed yet: one process makes it, and another compresses it."""

    def compressed(self) -> bytes:
        """Return the PNG that an image gives when it is not deferred."""
        from PIL import Image

        with Image.open(io.BytesIO(self)) as image:
            return _png(image)


def _png(image: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", **options)
    return out.getvalue()


Plan = tuple[list[tuple[int, Callable[[Any], Any]]], list[Callable[[Value], None]], bytes]
"""Conversions by the place of a value, the column of each value, and the encoded paths."""


class BatchBuilder:
    """Samples that come from no file, added one by one. Attributes: batch, of all of them.

    Samples mostly have the names and types of the one before, so that their values are converted
    and appended without a look at each: 1.2 us for two fields in place of 9 us.
    """

    def __init__(self, form: SampleForm) -> None:
        self._form = form
        self.batch = SampleBatch()
        self._keys, self._paths = self.batch.keys, self.batch.paths
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def add(self, key: bytes, sample: Any) -> tuple[bytes, int]:
        """Append a sample, and return its key, which is its own or this one, and its bytes.

        Raises:
            SampleError: a value cannot be stored; nothing is added.
        """
        signature: tuple[Any, ...] = ()
        if type(sample) is dict:
            values = [*sample.values()]
            signature = (*sample, *map(type, values))
            plan = self._plans.get(signature)
            if plan is not None:
                converts, appends, paths = plan
                try:
                    for i, convert in converts:
                        values[i] = convert(values[i])
                except SampleError:
                    self._form.fields_of(sample)  # raises, and names the field
                    raise
                for append, value in zip(appends, values, strict=True):
                    append(value)
                self._keys.append(key)
                self._paths.append(paths)
                return key, sum(map(len, values))
        own, fields = self._form.fields_of(sample)
        self.append(own or key, fields)
        if signature and (stores := self._form.plan(sample)):
            columns = self.batch.columns
            if {store.field for store in stores} == columns.keys():
                converts = [(i, s.convert) for i, s in enumerate(stores) if s.convert is not None]
                appends = [columns[store.field].append for store in stores]
                self._plans[signature] = converts, appends, self.batch.paths[-1]
        return own or key, sum(map(len, fields.values()))

    def append(self, key: bytes, fields: Fields) -> None:
        """Append a sample of stored values."""
        batch, num = self.batch, len(self.batch)
        if not fields.keys() <= batch.columns.keys():
            self._plans.clear()  # they have not all columns
        batch.keys.append(key)
        batch.paths.append(paths_of(fields))
        for name in dict.fromkeys([*batch.columns, *fields]):
            batch.columns.setdefault(name, [None] * num).append(fields.get(name))


def paths_of(fields: Iterable[str]) -> bytes:
    """Return the encoded paths of a sample that comes from no file: as its key and its fields."""
    return pack_paths(b"", [b"." + name.encode() for name in sorted(fields)])

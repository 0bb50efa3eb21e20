"""What to do about an HDF5 file whose groups are samples: a message, and lines of Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardkit.errors import CorpusError
from shardkit.inputs.containers.hdf5_groups import (
    How,
    SampleGroups,
    Shapes,
    all_sample_groups,
)
from shardkit.inputs.containers.row_files import ATTRIBUTES
from shardkit.system.paths import first_few

_READINGS: dict[How, str] = {
    "stack": "each is a sample",
    "join": "each holds rows",
    "either": "each is a sample, or holds rows",
    "files": "each is a sample, of another shape than others",
}

_MOST_BASES = 4
"""Groups that hold such groups, ``train`` and ``test``, for which lines are given."""


def refuse_sample_groups(shapes: Shapes, name: str, attributes: Sequence[str] = ()) -> None:
    """Raise CorpusError, with lines of Python as its note, if groups of the file called ``name``
    are samples, or parts of all rows, and no columns. ``attributes``: those that groups have."""
    found = all_sample_groups(shapes)
    if found:
        error = CorpusError(_why(found, name) + _left_behind(found, shapes, attributes))
        error.add_note("\n".join(_lines(found, name)))
        raise error


def _left_behind(found: Sequence[SampleGroups], shapes: Shapes, attributes: Sequence[str]) -> str:
    """What the lines do not take, in words: nobody knows which rows of it belong to which group."""
    taken = {
        groups.path(name, field)
        for groups in found
        for name in groups.names
        for field in (*groups.fields, *groups.others)
    }
    outside = [path for path in shapes if path not in taken]
    lost = [f"{', '.join(outside[:4])}{' ...' * (len(outside) > 4)}"] if outside else []
    lost += [f"the attributes of groups, {', '.join(attributes)}"] if attributes else []
    return f"; they leave out {' and '.join(lost)}" if lost else ""


def attributes_of_groups(left_out: Mapping[str, str], shapes: Shapes) -> list[str]:
    """Names of attributes, in order, that groups of a file have, and not its arrays: labels may be
    among them."""
    of_arrays = {ATTRIBUTES + path for path in shapes}
    held = {n: why for n, why in left_out.items() if n.startswith(ATTRIBUTES)}
    return sorted({each for n in held.keys() - of_arrays for each in held[n].split(", ")})


def _why(found: Sequence[SampleGroups], name: str) -> str:
    groups = found[0]
    first = (groups.fields or groups.others)[0]
    many = first_few([groups.path(each, first) for each in groups.names], 2)
    how = "--corpus paired packs" if _are_files(found) else f"can be packed, {_kept(found)}"
    return (
        f"{sum(len(each.names) for each in found):,}"
        f" {'arrays' if groups.is_turned else 'groups'} are called in a series or built alike"
        f" ({many}): {_READINGS[groups.how]}, and as columns all would be in one sample; the lines"
        f" below make {_made(found, name)}, which {how} (or choose columns with --fields)"
    )


def _kept(found: Sequence[SampleGroups]) -> str:
    names = ", ".join(sorted({repr(_origin(groups)) for groups in found}))
    what = "array" if found[0].is_turned else "group"
    return f"with the name of the {what} that each row is of as {names}"


def _origin(groups: SampleGroups) -> str:
    """What the names of groups are called among their fields: rows that are joined must not lose
    which episode, or patient, they are of."""
    taken = {field.partition("/")[0].lower() for field in groups.fields}
    name = "group"
    while name in taken:
        name += "_name"
    return name


def _are_files(found: Sequence[SampleGroups]) -> bool:
    return any(each.how == "files" for each in found)


def _made(found: Sequence[SampleGroups], name: str) -> str:
    return f"samples-{name.rpartition('.')[0]}" if _are_files(found) else f"rows-{name}"


def _lines(found: Sequence[SampleGroups], name: str) -> list[str]:
    """For each of several groups that hold some (``train``, ``test``) lines of their own."""
    made, lines = _made(found, name), []
    for groups in found[:_MOST_BASES]:
        inside = groups.base if len(found) > 1 else ""
        if _are_files(found):
            lines += _lines_for_files(groups, f"{made}/{inside}" if inside else made)
        else:
            lines += _lines_for_rows(groups, f"{inside}/" if inside else "")
    more = [f"# and so on: {', '.join(each.base for each in found[_MOST_BASES:])}"[:200]]
    opened = f"with h5py.File({name!r}) as old"
    if not _are_files(found):
        opened += f", h5py.File({made!r}, 'w') as new"
    imports = "import h5py, numpy as np, os, re"
    return [imports, f"{opened}:", *lines, *(more if len(found) > _MOST_BASES else [])]


def _lines_for_rows(groups: SampleGroups, prefix: str) -> list[str]:
    is_join = groups.how == "join"
    function = "concatenate" if is_join else "stack"
    count = "[len(part) for part in parts]" if is_join else "len(rows) // len(names)"
    doubt = "  # np.concatenate if each holds rows" if groups.how == "either" else ""
    lacking = [f"    # without {', '.join(groups.others)}, which only some have"]
    inside = _group(groups.path("", groups.fields[0]) if groups.is_turned else groups.base)
    first = _written(groups.path(_KEY, groups.fields[0]))
    return [
        *(lacking if groups.others else []),
        f"    names = [key for key in {inside} if {first} in old]",
        "    names.sort(key=lambda key: ([int(n) for n in re.findall('[0-9]+', key)], key))",
        f"    for field in {[field or 'data' for field in groups.fields]!r}:",
        f"        parts = [old[{_path(groups)}] for key in names]",
        f"        rows = np.{function}([part[()] for part in parts]){doubt}",
        "        are_equal = all(part.dtype == parts[0].dtype for part in parts)",
        "        dtype = parts[0].dtype if are_equal else rows.dtype",
        f"        new.create_dataset({prefix!r} + field, data=rows, dtype=dtype)",
        f"    new[{prefix + _origin(groups)!r}] = np.repeat(names, {count}).tolist()",
    ]


def _lines_for_files(groups: SampleGroups, folder: str) -> list[str]:
    """A ``.npy`` for each array of each group, side by side, which are pairs."""
    fields = [field or "data" for field in (*groups.fields, *groups.others)]
    within = groups.path("", _FIELD) if groups.fields != [""] else ""
    inside = f"old[{_written(within)}]" if groups.is_turned and within else _group(groups.base)
    return [
        f"    os.makedirs({folder!r}, exist_ok=True)",
        f"    for key, field in [(key, field) for field in {fields!r} for key in {inside}]:",
        f"        if {_path(groups)} in old:",
        f"            held = old[{_path(groups)}]",
        "            held = held.asstr() if h5py.check_string_dtype(held.dtype) else held",
        "            name = key.replace('.', '-') + '.' + field.replace('/', '.')",
        f"            file = {folder!r} + '/' + name + '.npy'",
        "            np.save(file, np.array(held[()]), allow_pickle=False)",
    ]


def _group(path: str) -> str:
    return f"old[{path!r}]" if path else "old"


def _path(groups: SampleGroups) -> str:
    """An expression for where the array ``field`` of the group ``key`` lies."""
    return _written(groups.path(_KEY, "" if groups.fields == [""] else _FIELD))


_KEY, _FIELD = "\0key", "\0field"
"""Stand for variables in a path; no name within HDF5 holds NUL."""


def _written(path: str) -> str:
    """An f-string of a path with variables."""
    text = path.replace("{", "{{").replace("}", "}}")
    return f"f{text.replace(_KEY, '{key}').replace(_FIELD, '{field}')!r}"

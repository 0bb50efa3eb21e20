"""Ranges of a dataset's files as they are asked for, kept nowhere: the keeper's part of it.

Blocks have checksums, and ranges have none: who asks has to know what their bytes should be.
"""

from __future__ import annotations

import asyncio

import numpy as np

from shardkit.arrays import Bytes, Integers
from shardkit.errors import IndexFileError
from shardkit.remote.blocks import BlockMap
from shardkit.remote.kept import Kept

GAP_BYTES = 4096
"""Ranges that lie nearer than this are one request: members of a sample in a tar do."""

REQUEST_BYTES = 4 << 20


async def read_exact(kept: Kept, split: str, asked: Integers) -> Integers:
    """The bytes of ranges, end to end, filled up with zeros to whole numbers.

    Args:
        asked: (3 R,) the number of each range's file, as ``{split}.sums`` has them, its first byte,
            and its size.

    Raises:
        IndexFileError: one lies outside its file. Others as of RemoteFolder.read.
    """
    if split not in kept.info.splits:
        raise IndexFileError(f"the dataset at {kept.remote.url} has no split {split}")
    files = BlockMap.of(kept.info.splits[split])
    numbers, starts, sizes = asked.reshape(3, -1)
    is_file = (numbers >= 0) & (numbers < len(files.names))
    inside = is_file & (starts >= 0) & (sizes >= 0)
    inside &= starts + sizes <= files.sizes[np.where(is_file, numbers, 0)]
    if not inside.all():
        raise IndexFileError(f"a range lies outside the files of {kept.remote.url}")
    places = np.cumsum(sizes) - sizes
    out: Bytes = np.zeros(-(-int(sizes.sum()) // 8) * 8, np.uint8)
    patience = kept.remote.patience()

    async def fetch(group: Integers) -> None:
        """Ranges of one file, by one request."""
        begin = int(starts[group[0]])
        count = int((starts[group] + sizes[group]).max()) - begin
        data = await kept.remote.read(files.names[int(numbers[group[0]])], begin, count, patience)
        for one in group.tolist():
            at, size, start = int(places[one]), int(sizes[one]), int(starts[one]) - begin
            out[at : at + size] = np.frombuffer(data, np.uint8)[start : start + size]

    await asyncio.gather(*map(fetch, _groups(numbers, starts, sizes)))
    return out.view(np.int64)


def _groups(numbers: Integers, starts: Integers, sizes: Integers) -> list[Integers]:
    """Indices of ranges that are fetched together; those of no bytes are in none."""
    order = np.lexsort((starts, numbers))
    groups: list[list[int]] = []
    file, begin, end = -1, 0, 0
    for one in order[sizes[order] > 0].tolist():
        start, stop = int(starts[one]), int(starts[one] + sizes[one])
        is_near = numbers[one] == file and start - end <= GAP_BYTES
        if groups and is_near and stop - begin <= REQUEST_BYTES:
            groups[-1].append(one)
            end = max(end, stop)
        else:
            groups.append([one])
            file, begin, end = int(numbers[one]), start, stop
    return [np.array(group, np.int64) for group in groups]

"""What finished shards may not be together: of different shapes, or rejected too often."""

from __future__ import annotations

from shardkit.errors import TooManyRejectsError
from shardkit.images.naming import RAW_FIELD
from shardkit.index.journal import Receipt
from shardkit.packing.pictures import unequal_shapes


class ShardTally:
    """Of one pack.

    Attributes:
        num_rejects: inputs left out so far.
    """

    def __init__(self, max_rejects: float, *, is_raw: bool) -> None:
        self.num_rejects = 0
        self._max_rejects = max_rejects
        self._is_raw = is_raw
        self._first_reject = ""
        self._shape: list[int] | None = None

    def count(self, receipt: Receipt) -> None:
        """Raises SampleError if raw pictures have another shape than those of earlier shards."""
        shape = receipt.encodings.get(RAW_FIELD, {}).get("shape")
        if self._is_raw and shape is not None:
            self._shape = self._shape or shape
            if shape != self._shape:
                raise unequal_shapes(f"every picture of shard {receipt.stem}", shape, self._shape)
        if receipt.rejects:
            path, reason = receipt.rejects[0]
            self._first_reject = self._first_reject or f"{path}: {reason}"
            self.num_rejects += len(receipt.rejects)

    def refuse_many(self, num_entries: int) -> None:
        """Raises TooManyRejectsError if of so many inputs too many were left out."""
        if self.num_rejects > self._max_rejects * num_entries:
            raise TooManyRejectsError(
                f"{self.num_rejects} of {num_entries} inputs were rejected, more than the share of"
                f" {self._max_rejects:g} that --max-rejects allows; the first:"
                f" {self._first_reject}"
            )

"""Windows and bins of tokens against plain lists: nothing lost, nothing twice, nothing mixed."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from token_data import documents

import shardkit
from shardkit.errors import DataError, UsageError
from shardkit.order.epochs import WINDOW_BLOCKS
from shardkit.sequences import documents as documents_module
from shardkit.sequences import fit as fit_module
from shardkit.sequences.binpack import best_fit_decreasing
from shardkit.sequences.bins import LONG, FitOrder
from shardkit.sequences.contiguous import ContiguousTokens
from shardkit.sequences.documents import Documents
from shardkit.sequences.fit import Fit
from shardkit.sequences.kinds import NO_LABEL
from shardkit.sequences.store import refuse_huge
from shardkit.sequences.windows import Windows
from shardkit.storage.local_files import CopiedRanges

INT64 = np.dtype(np.int64)
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=12)
CUTS = st.lists(st.integers(0, 400), max_size=4)


class OneFile:
    """All pieces are of one file; what is read is checked to lie in it."""

    def __init__(self, tokens: Any) -> None:
        self.data = np.frombuffer(tokens.tobytes(), np.uint8)

    def read(self, numbers: Any, starts: Any, sizes: Any) -> CopiedRanges:
        assert ((starts >= 0) & (starts + sizes <= len(self.data))).all()
        ranges = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        found = [np.empty(0, np.uint8), *(self.data[start:stop] for start, stop in ranges)]
        return CopiedRanges(np.concatenate(found), np.cumsum(sizes))


class InMemory(ContiguousTokens):
    """Documents whose tokens count on from one to the next, in pieces cut anywhere."""

    fingerprint = "in memory"
    dtype = np.dtype("<u2")

    def __init__(self, lengths: list[int], cuts: list[int]) -> None:
        self.docs = documents(lengths)
        self.tokens = np.concatenate(self.docs)
        self.documents = Documents(lambda a, b: np.array(lengths[a:b], np.int64), len(lengths))
        inside = sorted(cut for cut in cuts if cut < len(self.tokens))
        bounds = [2 * cut for cut in (0, *inside, len(self.tokens))]
        super().__init__(
            cast(Any, OneFile(self.tokens.astype("<u2"))), [*pairwise(bounds)], self.dtype
        )

    def where(self, token: int) -> str:
        return f"token {token}"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few documents are several blocks."""
    monkeypatch.setattr(documents_module, "BLOCK_DOCUMENTS", 3)
    monkeypatch.setattr(fit_module, "BLOCK_DOCUMENTS", 4)


def all_rows(sequences: Any, shuffle: Any, seed: int = 0, epoch: int = 0) -> Any:
    order = sequences.order(shuffle, seed, epoch)
    rows = order.rows(np.arange(len(order)))
    assert len(order) == sequences.num_samples
    assert ((rows >= 0) & (rows < sequences.num_rows)).all()
    return rows


# --- windows ------------------------------------------------------------------------------


def expected_window(store: InMemory, seq_len: int, start: int) -> dict[str, list[int]]:
    """Token by token, from a list of (token, document, number in its document)."""
    flat = [(int(t), d, i) for d, tokens in enumerate(store.docs) for i, t in enumerate(tokens)]
    window = [flat[(start + k) % len(flat)] for k in range(seq_len + 1)]
    positions: list[int] = []
    for _, _, i in window:
        positions.append(0 if i == 0 or not positions else positions[-1] + 1)
    return {
        "inputs": [t for t, _, _ in window[:-1]],
        "labels": [NO_LABEL if i == 0 else t for t, _, i in window[1:]],
        "position_ids": positions[:-1],
        "document_ids": [d for _, d, _ in window[:-1]],
    }


@given(LENGTHS, CUTS, st.integers(1, 40), st.data())
@example([5], [], 5, None)
@example([0, 0, 1, 0], [0, 0], 1, None)
def test_a_window_is_what_a_list_says(
    lengths: list[int], cuts: list[int], seq_len: int, data: Any
) -> None:
    store = InMemory(lengths, cuts)
    masked, plain = (Windows(store, seq_len, INT64, is_masked) for is_masked in (True, False))
    if not masked.num_samples:
        return
    some = st.lists(st.integers(0, masked.num_rows - 1), max_size=5)
    rows = np.array(data.draw(some) if data else range(masked.num_rows), np.int64)
    got, ignored = masked.read(rows), plain.read(rows)
    for k, row in enumerate(rows.tolist()):
        phase, window = divmod(row, masked.num_samples)
        expected = expected_window(store, seq_len, phase + window * seq_len)
        assert {name: values[k].tolist() for name, values in got.items()} == expected
        assert ignored["inputs"][k].tolist() == expected["inputs"]
        same = np.array(expected["labels"]) != NO_LABEL
        assert (ignored["labels"][k] == got["labels"][k])[same].all()
    assert ignored["inputs"].base is ignored["labels"].base
    assert {values.shape for values in got.values()} == {(len(rows), seq_len)}


@given(LENGTHS, CUTS, st.integers(1, 40), st.integers(0, 3), st.integers(0, 3))
def test_each_token_is_an_input_once_but_for_the_tail(
    lengths: list[int], cuts: list[int], seq_len: int, seed: int, epoch: int
) -> None:
    store = InMemory(lengths, cuts)
    windows = Windows(store, seq_len, INT64, is_masked=False)
    for shuffle in (None, "full", "block"):
        inputs = windows.read(all_rows(windows, shuffle, seed, epoch))["inputs"].ravel()
        left_out = set(range(store.num_tokens)) - set(inputs.tolist())
        assert len(inputs) == len(set(inputs.tolist()))
        assert len(left_out) == store.num_tokens % seq_len
        if shuffle is None:
            assert inputs.tolist() == list(range(len(inputs)))
        elif left_out and len(inputs):  # one after another on the circle
            gaps = [t for t in left_out if (t + 1) % store.num_tokens not in left_out]
            assert len(gaps) == 1


@pytest.mark.parametrize(("first", "seed"), [(0, 0), (777, 0), (64, 1), (2**40, -3)])
def test_no_window_comes_again_before_all_have(first: int, seed: int) -> None:
    """Any ``seq_len`` epochs have each phase once."""
    windows = Windows(InMemory([1000], []), 64, INT64, is_masked=False)
    epochs = [all_rows(windows, "full", seed, first + number) for number in range(64)]
    assert len(np.unique(np.concatenate(epochs))) == windows.num_rows


def test_phases_are_of_the_seed() -> None:
    windows = Windows(InMemory([1000], []), 64, INT64, is_masked=False)
    first = Counter(int(all_rows(windows, "full", seed)[0] // 15) for seed in range(640))
    assert len(first) == 64 and max(first.values()) < 30


# --- fit ----------------------------------------------------------------------------------


def naive_best_fit(sizes: list[int], capacity: int) -> list[int]:
    """Room left in each bin, sorted: one item after another, each bin looked at."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - size)
    return sorted(rooms)


@given(st.integers(1, 40), st.data())
def test_bins_are_those_of_best_fit_decreasing(capacity: int, data: Any) -> None:
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    bins = best_fit_decreasing(np.sort(np.array(sizes, np.int64))[::-1], capacity)
    loads = np.bincount(bins, sorted(sizes, reverse=True)).astype(int)
    assert sorted((capacity - loads).tolist()) == naive_best_fit(sizes, capacity)


def fitted_pairs(store: InMemory, got: dict[str, Any]) -> Counter[int]:
    """The inputs that are tokens, after all that must hold of them was checked."""
    is_text = got["document_ids"] >= 0
    assert (got["labels"] == np.where(is_text, got["inputs"] + 1, NO_LABEL)).all()
    of_document = np.repeat(np.arange(len(store.docs)), list(map(len, store.docs)))
    inputs = got["inputs"][is_text]
    assert (of_document[inputs] == got["document_ids"][is_text]).all()
    for row in range(len(is_text)):
        follows = np.diff(got["inputs"][row]) == 1
        follows &= np.diff(got["document_ids"][row]) == 0
        steps = np.diff(got["position_ids"][row])
        assert got["position_ids"][row, 0] == 0
        assert (steps[~follows & is_text[row, 1:]] <= 0).all()
        assert ((steps == 1) | (got["position_ids"][row, 1:] == 0)).all()
        assert (np.diff(is_text[row].astype(int)) <= 0).all()  # padding comes last
    return Counter(inputs.tolist())


@given(LENGTHS, CUTS, st.integers(1, 40), st.integers(0, 3), st.integers(0, 3))
def test_each_pair_comes_once(
    lengths: list[int], cuts: list[int], seq_len: int, seed: int, epoch: int
) -> None:
    store = InMemory(lengths, cuts)
    fit = Fit(store, seq_len, INT64, pad=7)
    ends = {int(tokens[-1]) for tokens in store.docs if len(tokens)}
    expected = Counter(set(range(store.num_tokens)) - ends)
    for shuffle in (None, "full", "block"):
        got = fit.read(all_rows(fit, shuffle, seed, epoch))
        assert fitted_pairs(store, got) == expected
        padding = got["document_ids"] < 0
        assert (got["inputs"][padding] == 7).all()
        assert fit.padding == pytest.approx(padding.mean() if padding.size else 1)


@given(LENGTHS, st.integers(1, 40), st.data())
def test_rows_do_not_depend_on_those_read_with_them(
    lengths: list[int], seq_len: int, data: Any
) -> None:
    fit = Fit(InMemory(lengths, []), seq_len, INT64, pad=0)
    if not fit.num_samples:
        return
    rows = np.array(data.draw(st.lists(st.integers(0, fit.num_rows - 1), min_size=1, max_size=6)))
    again = Fit(InMemory(lengths, [3, 4]), seq_len, INT64, pad=0)
    together = fit.read(rows)
    for k, row in enumerate(rows.tolist()):
        alone = again.read(np.array([row]))
        assert all((alone[name][0] == together[name][k]).all() for name in together)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=12), st.integers(1, 40))
def test_only_what_must_be_cut_is(lengths: list[int], seq_len: int) -> None:
    store = InMemory(lengths, [])
    got = Fit(store, seq_len, INT64, pad=0)
    read = got.read(all_rows(got, "full"))
    is_first = (read["position_ids"] == 0) & (read["document_ids"] >= 0)
    pieces = Counter(read["document_ids"][is_first].tolist())
    for document, length in enumerate(lengths):
        needed = -(-(length - 1) // seq_len)
        more = int((length - 1) // seq_len >= LONG)
        assert needed <= pieces[document] <= needed + more


def test_cuts_and_company_are_drawn_anew() -> None:
    fit = Fit(InMemory([35] * 4 + [5] * 8, []), 10, INT64, pad=0)
    seen = set()
    for epoch in range(8):
        got = fit.read(np.sort(all_rows(fit, "full", 0, epoch)))
        seen.add(got["inputs"].tobytes())
    assert len(seen) > 4


def windows_of(fit: Fit, epoch: int, seed: int = 0) -> set[tuple[int, int]]:
    """Document and first token of what fills a sequence alone: full pieces."""
    got = fit.read(all_rows(fit, "full", seed, epoch))
    is_one = (got["position_ids"] != 0).sum(axis=1) == got["inputs"].shape[1] - 1
    return set(zip(got["document_ids"][is_one, 0], got["inputs"][is_one, 0], strict=True))


@pytest.mark.parametrize("lengths", [[1281] * 24, [700, 1283, 2600, 1900, 333] * 5])
def test_windows_of_long_documents_come_again_by_chance(lengths: list[int]) -> None:
    """Of documents of 5 to 40 sequences 60 to 70 % came in the next epoch, too, and all of those
    that are whole numbers of sequences."""
    fit = Fit(InMemory(lengths, []), 64, INT64, pad=0)
    epochs = [windows_of(fit, epoch) for epoch in range(12)]
    least = sum((n - 1) // 64 - 1 for n in lengths)
    assert min(map(len, epochs)) >= least
    again = sum(len(a & b) for a, b in itertools.pairwise(epochs))
    assert again < 3 * 11 * least / 64
    starts = Counter(token % 64 for epoch in epochs for _, token in epoch)
    assert len(starts) == 64
    assert windows_of(fit, 0, seed=1) != epochs[0]


def test_a_document_goes_round_in_one_sequence() -> None:
    """Its head and then its tail, two pieces: attention sees neither of them twice."""
    fit = Fit(InMemory([1281], []), 64, INT64, pad=0)
    got = fit.read(all_rows(fit, "full", 0, 1))
    (row,) = np.flatnonzero((got["position_ids"] == 0).sum(axis=1) > 1)
    (joint,) = np.flatnonzero(got["position_ids"][row] == 0)[1:]
    assert got["inputs"][row].tolist() == [*range(joint), *range(1216 + joint, 1280)]
    assert fit.padding == 0


def test_epochs_have_variants_of_their_own() -> None:
    order = Fit(InMemory([5], []), 2, INT64, pad=0).order
    variants = {int(order("full", 0, epoch).rows(np.zeros(1, np.int64))[0]) for epoch in range(9)}
    assert len(variants) == 9


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3 * WINDOW_BLOCKS),
    st.integers(0, 3),
    st.integers(0, 3),
)
@example([2, 0, 5] * WINDOW_BLOCKS, 0, 0)
def test_an_order_of_bins_has_each_once(counts: list[int], seed: int, epoch: int) -> None:
    starts = np.cumsum([0, *counts])
    order = FitOrder(starts, True, seed, epoch)
    rows = order.rows(np.arange(len(order)))
    assert sorted((rows % max(len(order), 1)).tolist()) == list(range(len(order)))
    assert len(set((rows // max(len(order), 1)).tolist())) <= 1
    some = np.arange(len(order))[::3]
    assert (order.rows(some) == rows[::3]).all()


def test_bins_of_few_blocks_are_all_mixed() -> None:
    starts = np.arange(0, 17 * 100, 100)
    order = FitOrder(starts, True, 0, 0)
    blocks = order.rows(np.arange(50)) % len(order) // 100
    assert len(set(blocks.tolist())) > 10
    with pytest.raises(IndexError):
        order.rows(np.array([len(order)]))


# --- what cannot be -----------------------------------------------------------------------


def test_ids_that_no_vocabulary_has_are_damage() -> None:
    for dtype in (INT64, np.dtype(np.int32)):
        tokens = np.array([5, 2**31 - 1], dtype)
        refuse_huge(tokens, np.dtype("<u4"))
        huge = np.array([5, 2**31], np.int64).astype(dtype)
        with pytest.raises(DataError, match="token id 2147483648 is more than 2147483647, which"):
            refuse_huge(huge, np.dtype("<u4"))
    with pytest.raises(DataError, match="the data is damaged"):
        refuse_huge(np.array([-1], np.int64), np.dtype("<u8"))


def test_ids_of_8_bytes_are_refused_before_they_are_cut() -> None:
    def read(*ids: int) -> Any:
        file = cast(Any, OneFile(np.array(ids, "<u8")))
        store = ContiguousTokens(file, [(0, 8 * len(ids))], np.dtype("<u8"))
        out = np.zeros(len(ids), np.int32)
        store.read(np.array([0]), np.array([len(ids)]), out)
        return out

    assert read(7, 2**31 - 1).tolist() == [7, 2**31 - 1]
    for huge in (2**31, 2**32 + 5, 2**63, 2**64 - 1):
        with pytest.raises(DataError, match=f"token id {huge} is more than"):
            read(7, huge)


def test_fit_takes_no_options_of_an_order() -> None:
    fit = Fit(InMemory([5], []), 2, INT64, pad=0)
    with pytest.raises(UsageError, match="takes no block_rows"):
        fit.order("block", 0, 0, block_rows=4)
    assert shardkit.TokenDataset

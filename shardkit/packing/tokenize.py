"""Text into tokens: field ``txt`` of samples becomes field ``tokens``, a ``.npy`` of ids.

The tokenizer is loaded or trained, proved, and kept until the pack is complete. All that happens
once, before the first shard. Its file goes where the finished files wait, and a record of it into
the work folder, so that a resumed pack has the same tokenizer.
"""

from __future__ import annotations

import json
import math
import mmap
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Array
from shardkit.commit.durable_files import atomic_write
from shardkit.commit.records import from_record, read_record, write_record
from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.inputs.corpus import Corpus, Input, Run
from shardkit.memory.maps import release_freed, release_pages
from shardkit.packing.destination import TOKENIZER_RECORD, Destination
from shardkit.packing.options import PackOptions
from shardkit.packing.plan import draw, take
from shardkit.samples.encoding import TOKENS, npy_header
from shardkit.samples.sample import SampleBatch, Value, rename_field, unpack_paths
from shardkit.system.paths import show_path
from shardkit.tokens.load import from_stored, load_tokenizer
from shardkit.tokens.prove import choose_backend
from shardkit.tokens.spec import TokenizerSpec
from shardkit.tokens.tokenizer import Tokenizer
from shardkit.tokens.train import train

PROOF_BYTES = 2 << 20
PROOF_INPUT_BYTES = 64 << 20
"""Text on which the fast backend must agree before it is taken, and what is read for it at most
where there are pictures beside it."""

TRAINING_BYTES = 100 << 20
"""Most text a tokenizer is trained on; where there is more, entries are drawn."""

TRAINED_NAME = "trained.json"


@dataclass(frozen=True)
class ChosenTokenizer:
    """What makes the tokens of a pack.

    Attributes:
        spec: the tokenizer, as :class:`TokenizerSpec` has it in JSON. backend: what runs it.
        notes: what there is to say of it, a line each.
    """

    spec: dict[str, Any]
    backend: str
    notes: list[str]


def load_chosen(options: PackOptions) -> Tokenizer | None:
    """Return the tokenizer that was named, if one was. Raises UsageError if there is none."""
    if options.tokenizer is None:
        return None
    return load_tokenizer(options.tokenizer, eos=options.eos, bos=options.bos)


def refuse_without_text(corpus: Input, source: Path) -> None:
    """Raise CorpusError if there is no text to tokenize in this kind of input."""
    if corpus.has_text:
        return
    where = f"{show_path(source)} is taken for {corpus.kind}"
    if "text_field" in corpus.options:
        raise CorpusError(
            f"{where}, of which each line has several fields; pass --text-field NAME to say which"
            " holds the text to tokenize"
        )
    raise CorpusError(
        f"{where}, and has no text to tokenize; leave the tokenizer out, or choose with --corpus"
    )


def prepare_tokenizer(
    destination: Destination,
    corpus: Corpus,
    options: PackOptions,
    loaded: Tokenizer | None,
) -> ChosenTokenizer | None:
    """Load or train it, choose its backend, and keep both; or what an earlier call has kept.

    Raises:
        UsageError: the tokenizer, or its end of text, is not there.
        CorpusError: there is no text to train it on.
    """
    if not options.makes_tokens:
        return None
    if (found := _recorded(destination)) is not None:
        return found
    destination.forget_shards()
    notes = []
    if loaded is None:
        loaded, note = _train(destination, corpus, options)
        notes.append(note)
    scratch = destination.scratch
    runs = corpus.runs(scratch)
    sample = _texts(runs, corpus, scratch, PROOF_BYTES, PROOF_INPUT_BYTES)
    tokenizer, note = choose_backend(loaded, sample)
    release_freed()  # the proof took 150 MB
    spec = replace(tokenizer.spec, invalid_utf8=options.invalid_utf8)
    atomic_write(destination.stage / str(spec.file), [tokenizer.file])
    notes.append(note)
    if not spec.is_lossless:
        notes.append("the tokenizer does not keep all of a text: unpack cannot restore it")
    chosen = ChosenTokenizer(spec.to_json(), tokenizer.backend, notes)
    write_record(destination.work / TOKENIZER_RECORD, asdict(chosen))
    return chosen


def _recorded(destination: Destination) -> ChosenTokenizer | None:
    """Return what an earlier call kept, if all of it is there."""
    try:
        record = read_record(destination.work / TOKENIZER_RECORD)
        if record is None:
            return None
        found = from_record(ChosenTokenizer, record)
        spec = TokenizerSpec.from_json(found.spec)
        is_whole = spec.matches((destination.stage / str(spec.file)).read_bytes())
    except (FileNotFoundError, TypeError, FormatError):  # the record of another release
        return None
    return found if is_whole else None


def reopen(stage: Path, chosen: dict[str, Any]) -> Tokenizer:
    """Return that tokenizer, of its JSON; made once a process, and not proved again."""
    return _reopen(stage, json.dumps(chosen))


@lru_cache(maxsize=1)
def _reopen(stage: Path, chosen: str) -> Tokenizer:
    raw = json.loads(chosen)
    spec = TokenizerSpec.from_json(raw["spec"])
    return from_stored((stage / str(spec.file)).read_bytes(), spec, raw["backend"])


# --- training -----------------------------------------------------------------------------


def _train(destination: Destination, corpus: Corpus, options: PackOptions) -> tuple[Tokenizer, str]:
    """Return a tokenizer of the text of ``train``, or of the only split, and a line about it."""
    splits = corpus.splits()
    split = "train" if "train" in splits else splits[0]

    def runs() -> Iterator[Run]:
        listed = corpus.runs(destination.scratch)
        return take((run for run in listed if run.split == split), options.limit)

    def drawn(run: Run) -> Run:
        """Return about this share of a run's entries, chosen by their keys and the seed."""
        digests = np.fromiter(map(xxhash.xxh3_64_intdigest, run.keys), np.uint64, len(run))
        draws = draw(digests, options.seed, "tokenizer")
        return run.take(np.flatnonzero(draws < np.uint64(share * 2.0**64)).tolist())

    # Beside pictures, sizes say nothing of text.
    sizes = (min(size, LARGE_BYTES) for run in runs() for size in run.sizes)
    share = 1.0 if corpus.has_pictures else TRAINING_BYTES / max(sum(sizes), 1)
    chosen = runs() if share >= 1 else map(drawn, runs())
    texts = _texts(chosen, corpus, destination.scratch, TRAINING_BYTES)
    first = next(texts, None)
    if first is None:
        raise CorpusError(f"split {split} has no text to train a tokenizer on")
    path = destination.work / TRAINED_NAME
    atomic_write(path, [train(chain([first], texts), options.train_tokenizer or 0)])
    tokenizer = load_tokenizer(path, eos=options.eos, bos=options.bos)
    return tokenizer, f"trained a tokenizer of {tokenizer.spec.vocab_size:,} entries on {split}"


def _texts(
    runs: Iterable[Run], corpus: Corpus, scratch: Path, at_most: int, input_bytes: float = math.inf
) -> Iterator[str]:
    """Yield the text of entries, one after another, until there are so many bytes, or so many input
    bytes were read; of a large document the first :data:`LARGE_BYTES`."""
    left = at_most
    for piece in chain.from_iterable(slices(run, LARGE_BYTES) for run in runs):
        for value in corpus.read(piece, scratch).columns.get(TEXT, []):
            if value is None or not left:
                continue
            data = value[: min(left, LARGE_BYTES)]
            left -= len(data)
            yield str(data, "utf-8", "replace")
        input_bytes -= sum(piece.sizes)
        if not left or input_bytes <= 0:
            return


TEXT = "txt"

SLICE_BYTES = 16 << 20
"""Text that is read, tokenized and dropped at a time. As a str it may take four times as much."""

LARGE_BYTES = 8 << 20
"""A larger document is tokenized piece by piece, into a file."""

TRIM_PIECES = 16
"""Of a large document, between which freed memory is given back: some 16 MB of text."""


def slices(run: Run, num_bytes: int = SLICE_BYTES) -> Iterator[Run]:
    """Cut a run into pieces of at most so many input bytes, and at least one entry."""
    ends = np.cumsum(np.array(run.sizes, np.int64))
    start = before = 0
    while start < len(run):
        stop = int(np.searchsorted(ends, before + num_bytes, side="right"))
        stop = max(stop, start + 1)
        yield run.slice(start, stop)
        start, before = stop, int(ends[stop - 1])


def tokenize(batch: SampleBatch, tokenizer: Tokenizer, scratch: Path) -> SampleBatch:
    """Make of each sample's text its ids; samples whose text is not UTF-8 go to ``rejects``.

    ``scratch`` is a folder for the ids of large documents, which hold no memory.
    """
    made: list[Value | None] = [None] * len(batch)
    reasons: dict[int, tuple[str, str]] = {}
    texts: dict[int, str] = {}
    ends = _Ends(tokenizer.spec)
    errors = "replace" if tokenizer.spec.invalid_utf8 == "replace" else "strict"
    for i, value in enumerate(batch.columns.get(TEXT, made)):
        if value is None:
            continue
        try:
            if len(value) > LARGE_BYTES:
                made[i] = _large(value, tokenizer, ends, scratch, errors)
            else:
                texts[i] = str(value, "utf-8", errors)
        except SampleError as error:
            reasons[i] = TEXT, str(error)
        except UnicodeDecodeError:
            offset = first_not_utf8(value)
            why = (
                f"is not UTF-8: byte 0x{value[offset]:02x} at offset {offset}; pass --invalid-utf8"
                " replace to store U+FFFD in its place"
            )
            reasons[i] = TEXT, why
    for i, value in enumerate(batch.columns.get(TOKENS, [])):
        if value is not None:
            reasons[i] = TOKENS, f"its sample has a field {TOKENS} already; rename that file"
    encoded = tokenizer.encode([*texts.values()])
    for i, ids in zip(texts, encoded, strict=True):
        made[i] = ends.value(ids)
    columns = {name: v for name, v in batch.columns.items() if name not in (TEXT, TOKENS)}
    if texts or any(value is not None for value in made):
        columns[TOKENS] = made
    return batch.without(SampleBatch(batch.keys, _paths(batch), columns, batch.rejects), reasons)


def _paths(batch: SampleBatch) -> list[bytes]:
    """Return the samples' paths, in order of their new fields; names of files stay as they were."""
    if len(batch.columns) == 1:
        return batch.paths
    paths = [*batch.paths]
    for i, (key, packed) in enumerate(zip(batch.keys, batch.paths, strict=True)):
        fields = [*batch.fields(i)]
        for name, path, _ in unpack_paths(key, packed, fields):
            if name == TEXT:
                paths[i] = rename_field(key, packed, fields, TEXT, TOKENS, path)
    return paths


class _Ends:
    """What stands around a document's own ids: the header of its ``.npy``, BOS and EOS."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self.dtype = spec.dtype
        self.bos, self.eos = (
            b"" if token is None else np.array([token], spec.dtype).tobytes()
            for token in (spec.bos, spec.eos)
        )
        self._item_bytes = np.dtype(spec.dtype).itemsize

    def header(self, num_bytes: int) -> bytes:
        """Return the header of a ``.npy`` of so many bytes of ids."""
        return npy_header(self.dtype, (num_bytes // self._item_bytes,))

    def value(self, ids: Array) -> bytes:
        data = b"".join((self.bos, ids.tobytes(), self.eos))
        return self.header(len(data)) + data


def _large(value: Value, tokenizer: Tokenizer, ends: _Ends, scratch: Path, errors: str) -> Value:
    """Return a document's ``.npy`` in a file without a name, mapped: gone with its last user."""
    with TemporaryFile(dir=scratch) as file:
        skip = len(ends.header(0))
        file.seek(skip)
        file.write(ends.bos)
        for number, ids in enumerate(tokenizer.encode_pieces(value, errors)):
            release_pages(value)
            if number % TRIM_PIECES == 0:
                release_freed()
            file.write(ids.tobytes())
        file.write(ends.eos)
        header = ends.header(file.tell() - skip)
        if len(header) != skip:
            raise FormatError(f"a .npy header of {len(header)} bytes, expected {skip}")
        file.seek(0)
        file.write(header)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def first_not_utf8(value: Value) -> int:
    """Return the place of the first byte that is not of valid UTF-8, piece by piece."""
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(value), LARGE_BYTES):
        held = len(decoder.getstate()[0])
        stop = start + LARGE_BYTES
        try:
            decoder.decode(value[start:stop], stop >= len(value))
        except UnicodeDecodeError as error:
            return start - held + error.start
    return len(value)

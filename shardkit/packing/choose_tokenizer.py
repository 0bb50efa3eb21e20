"""The tokenizer of a pack: loaded or trained, proved, and kept until the pack is whole.

All that happens once, before the first shard. The file goes where the finished files wait, a record
of it into the work folder, so that a resumed pack has the same tokenizer, however it was come by.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.base import Corpus, Input, Run
from shardkit.memory.chunks import release_freed
from shardkit.packing.destination import TOKENIZER_RECORD, Destination
from shardkit.packing.options import PackOptions
from shardkit.packing.plan import draw, take
from shardkit.packing.tokenize import LARGE_BYTES, TEXT, slices
from shardkit.system.durable_files import atomic_write
from shardkit.system.paths import show_path
from shardkit.system.records import from_record, read_record, write_record
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
    """The tokenizer that was named, if one was. Raises UsageError if there is none of that name."""
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
    all_runs: Callable[[], Iterator[Run]],
    options: PackOptions,
    loaded: Tokenizer | None,
) -> ChosenTokenizer | None:
    """Load or train it, choose its backend, and keep both; or what an earlier call has kept.

    ``all_runs``: lists what is to be packed.

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
        loaded, note = _train(destination, corpus, all_runs, options)
        notes.append(note)
    head = _head(all_runs(), PROOF_INPUT_BYTES)
    sample = _texts(head, corpus, destination.scratch, PROOF_BYTES)
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
    """What an earlier call kept, if all of it is there."""
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
    """That tokenizer, of its JSON; made once a process, and not proved again."""
    return _reopen(stage, json.dumps(chosen))


@lru_cache(maxsize=1)
def _reopen(stage: Path, chosen: str) -> Tokenizer:
    raw = json.loads(chosen)
    spec = TokenizerSpec.from_json(raw["spec"])
    return from_stored((stage / str(spec.file)).read_bytes(), spec, raw["backend"])


# --- training -----------------------------------------------------------------------------


def _train(
    destination: Destination,
    corpus: Corpus,
    all_runs: Callable[[], Iterator[Run]],
    options: PackOptions,
) -> tuple[Tokenizer, str]:
    """A tokenizer of the text of ``train``, or of the only split, and a line about it."""
    splits = corpus.splits()
    split = "train" if "train" in splits else splits[0]

    def runs() -> Iterator[Run]:
        return take((run for run in all_runs() if run.split == split), options.limit)

    # Beside pictures, sizes say nothing of text.
    sizes = (min(size, LARGE_BYTES) for run in runs() for size in run.sizes)
    share = 1.0 if corpus.has_pictures else min(TRAINING_BYTES / max(sum(sizes), 1), 1.0)
    drawn = (_drawn(run, share, options.seed) for run in runs())
    texts = _texts(drawn, corpus, destination.scratch, TRAINING_BYTES)
    first = next(texts, None)
    if first is None:
        raise CorpusError(f"split {split} has no text to train a tokenizer on")
    path = destination.work / TRAINED_NAME
    atomic_write(path, [train(chain([first], texts), options.train_tokenizer or 0)])
    tokenizer = load_tokenizer(path, eos=options.eos, bos=options.bos)
    return tokenizer, f"trained a tokenizer of {tokenizer.spec.vocab_size:,} entries on {split}"


def _drawn(run: Run, share: float, seed: int) -> Run:
    """Those entries of a run, about this share of all, that their keys and ``seed`` choose."""
    if share >= 1:
        return run
    digests = np.fromiter(map(xxhash.xxh3_64_intdigest, run.keys), np.uint64, len(run))
    chosen = np.flatnonzero(draw(digests, seed, "tokenizer") < np.uint64(share * 2.0**64)).tolist()
    return run.take(chosen)


def _head(runs: Iterable[Run], num_bytes: int) -> Iterator[Run]:
    """The first entries, so many input bytes of them."""
    for piece in chain.from_iterable(slices(run, LARGE_BYTES) for run in runs):
        if num_bytes > 0:
            yield piece
        num_bytes -= sum(piece.sizes)
        if num_bytes <= 0:
            return


def _texts(runs: Iterable[Run], corpus: Corpus, scratch: Path, at_most: int) -> Iterator[str]:
    """The text of entries, one after another, until there are so many bytes; of a large document
    the first :data:`LARGE_BYTES`."""
    left = at_most
    for piece in chain.from_iterable(slices(run, LARGE_BYTES) for run in runs):
        for value in corpus.read(piece, scratch).columns.get(TEXT, []):
            if value is None or not left:
                continue
            data = value[: min(left, LARGE_BYTES)]
            left -= len(data)
            yield str(data, "utf-8", "replace")
        if not left:
            return

"""Try to break shardkit, for minutes or hours: `make campaign`.

    python scripts/campaign                         all kinds, some minutes
    python scripts/campaign --only flips --flips 5000
    python scripts/campaign --minutes 120           as many cases as that allows
    python scripts/campaign --reproduce flips:7:1234

Each case is derived from its kind, the seed and its number alone. Exit status 1 if there was a
finding: each is printed with the command that makes it again, and its files are kept.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import click
from cases import Case
from kinds import KINDS
from running import campaign, reproduce


def _counts(command: click.Command) -> click.Command:
    for option, kind in OPTIONS.items():
        about = f"Cases of {kind}: {KINDS[kind].what}.  [default: {KINDS[kind].default:,}]"
        command.params.append(click.Option([f"--{option}", kind], type=int, help=about))
    return command


OPTIONS = {"mutations": "fuzz", "flips": "flips", "kills": "kills"}
OPTIONS |= {"configs": "contract", "faults": "faults", "plants": "planted", "writes": "writes"}
OPTIONS |= {"splitters": "splitters"}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--only", multiple=True, type=click.Choice([*KINDS]), help="Kinds to run, else all.")
@click.option("--seed", type=int, help="Of all cases; drawn, and printed, if none is given.")
@click.option("--minutes", type=float, help="Run so long, instead of a number of cases.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--reproduce", "again", metavar="CASE", help="Run one case, as flips:7:1234.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    default=Path("campaign-findings"),
    show_default=True,
    help="Where the files of findings go.",
)
def main(
    only: tuple[str, ...],
    seed: int | None,
    minutes: float | None,
    workers: int,
    again: str | None,
    keep: Path,
    **counts: int | None,
) -> None:
    if again is not None:
        try:
            case = Case.parse(again)
            kind = KINDS[case.kind]
        except (ValueError, KeyError):
            raise click.UsageError(f"{again!r} is no case: give KIND:SEED:NUMBER") from None
        sys.exit(reproduce(kind, case, keep.absolute()))
    seed = random.SystemRandom().randrange(1 << 30) if seed is None else seed
    chosen = [kind for name, kind in KINDS.items() if not only or name in only]
    print(f"seed {seed}", flush=True)
    sys.exit(campaign(chosen, seed, counts, minutes, workers, keep.absolute()))


_counts(main)

if __name__ == "__main__":
    main()

"""Lightning, transformers' Trainer, accelerate, torchdata and Ray Train themselves, killed and
resumed, and torchtitan's checkpoints.

``make test-open`` installs them in an environment of their own, and runs these there.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import warnings
from contextlib import chdir, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from conftest import make_images, write
from jobs import free_port
from test_readme import TEXTS, blocks, script
from token_data import documents, pack_tokens
from torch.utils.data import DataLoader
from trained import Rows, digest

import shardkit
from shardkit import Loader
from shardkit.errors import SamplerMissingError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    WHY = "not installed here; `make test-open` does"
    lightning = pytest.importorskip("lightning", reason=WHY)
    transformers = pytest.importorskip("transformers", reason=WHY)
    accelerate = pytest.importorskip("accelerate", reason=WHY)
    from accelerate.data_loader import DataLoaderShard
    from lightning.pytorch.callbacks import ModelCheckpoint
    from transformers import Trainer, TrainingArguments

# What they warn of is theirs: of few workers, of a model in eval mode, of steps between logs.
pytestmark = pytest.mark.filterwarnings("ignore")

TESTS = Path(__file__).parent
RANKS = 2
SCRIPTS = {name: b.text for b in blocks(TEXTS["docs/trainers.md"]) if (name := script(b))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 pictures, packed as the page says."""
    root = tmp_path_factory.mktemp("trainers")
    make_images(root / "pictures")
    shardkit.pack(root / "pictures", root / "pictures-lmdb", to="lmdb", workers=0, progress=False)
    return root


# --- the page's scripts, on two ranks -----------------------------------------------------


def start(rank: int, port: int, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """As torchrun starts it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    env |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    with (folder / f"out-{rank}").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=env, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip


ABORTED = "terminate called without an active exception"
"""What a rank may say after its end: torch's own thread drops a tensor while the interpreter goes,
on a busy machine, whether the group was destroyed or not (pytorch/pytorch#179291)."""


def run_ranks(commands: list[list[str]], folder: Path) -> tuple[list[int], list[str]]:
    """Exit codes, and what was written. When one rank was killed, so are the others."""
    port = free_port()
    ranks = [start(rank, port, command, folder) for rank, command in enumerate(commands)]
    try:
        codes = []
        for rank in ranks:
            codes.append(rank.wait(timeout=120))
            if codes[-1] == -signal.SIGKILL:
                break
    finally:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
    outs = [(folder / f"out-{rank}").read_text() for rank in range(RANKS)]
    for rank, code in enumerate(codes):
        if code == -signal.SIGABRT and outs[rank].strip().endswith(ABORTED):
            codes[rank] = 0
    return codes, outs


def train(name: str, folder: Path, turn: int, last: int) -> list[list[str]]:
    """Run a script of the folder until its ``last`` batch; what each rank trained on."""
    return run_noted([str(TESTS / "trained.py"), name], folder, turn, last)


def run_noted(command: list[str], folder: Path, turn: int, last: int) -> list[list[str]]:
    """As :func:`train`; ``command`` takes files for notes, and the ``last`` batch."""
    notes = [folder / f"notes-{turn}-{rank}" for rank in range(RANKS)]
    commands = [[*command, str(note), str(last)] for note in notes]
    codes, outs = run_ranks(commands, folder)
    is_as_told = -signal.SIGKILL in codes if last else codes == [0] * RANKS
    assert is_as_told, "\n".join(outs)[-4000:]
    return [note.read_text().split() for note in notes]


def undisturbed(folder: Path, rank: int) -> list[str]:
    """The batches of three epochs, by a plain loop."""
    loader = Loader(
        shardkit.open(folder / "pictures-lmdb"), 3, shuffle="full", workers=0, rank=rank,
        world_size=RANKS, transform=shardkit.images.train(16),
    )  # fmt: skip
    return [digest(batch) for _ in range(3) for batch in loader]


BY_EPOCH = {"every_n_train_steps=4": "every_n_epochs=1"}


@pytest.mark.parametrize(
    ("name", "turns", "change"),
    [
        # (first step, 0-based; the batch of this run in whose step it is killed). An epoch has six
        # steps: the second run begins in mid-epoch, the third at an epoch's end.
        ("with_lightning.py", [(0, 10), (8, 6), (12, 0)], {}),
        ("with_lightning.py", [(0, 8), (6, 0)], BY_EPOCH),
        ("with_trainer.py", [(0, 10), (8, 6), (12, 0)], {}),
        ("with_accelerate.py", [(0, 12), (10, 4), (12, 0)], {}),
        ("with_torchdata.py", [(0, 10), (8, 6), (12, 0)], {}),
        ("with_dcp.py", [(0, 10), (8, 6), (12, 0)], {}),
    ],
)
def test_a_script_goes_on_where_it_was_killed(
    name: str, turns: list[tuple[int, int]], change: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "pictures-lmdb").symlink_to(folder / "pictures-lmdb")
    text = SCRIPTS[name]
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    write(tmp_path / name, text)
    write(tmp_path / "data.py", SCRIPTS["data.py"])
    expected = [undisturbed(folder, rank) for rank in range(RANKS)]
    assert {len(batches) for batches in expected} == {len(set(expected[0] + expected[1])) // 2}
    for turn, (first, last) in enumerate(turns):
        for seen, batches in zip(train(name, tmp_path, turn, last), expected, strict=True):
            assert seen == batches[first : first + len(seen)], f"run {turn}"
            # A rank that lags is killed with the other, in the step before.
            assert len(seen) in ((last - 1, last) if last else (len(batches) - first,))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("evaluate.py", ["all ranks", "rank 0 alone"]),
        ("evaluate_accelerate.py", ["all ranks"]),
        ("evaluate_trainer.py", ["all ranks"]),
        ("evaluate_lightning.py", ["all ranks"]),
    ],
)
def test_each_sample_is_evaluated_once(
    name: str, lines: list[str], folder: Path, tmp_path: Path
) -> None:
    """36 samples in batches of five on two ranks: six are left for the last."""
    (tmp_path / "pictures-lmdb").symlink_to(folder / "pictures-lmdb")
    write(tmp_path / name, SCRIPTS[name])
    write(tmp_path / "data.py", "import torch\ntorch.manual_seed(0)\n" + SCRIPTS["data.py"])
    codes, outs = run_ranks([[name]] * RANKS, tmp_path)
    assert codes == [0, 0], outs
    found = re.findall(r"(all ranks|rank 0 alone): 36 of 36 samples, (\d+) right", outs[0])
    assert [line for line, _ in found] == lines
    assert {int(right) for _, right in found} == {right_alone(folder)}


def right_alone(folder: Path) -> int:
    """Predictions that are right, of all samples in one batch."""
    space: dict[str, Any] = {}
    with chdir(folder):
        torch.manual_seed(0)
        exec(SCRIPTS["data.py"], space)
        net, ds = space["Net"]().eval(), space["ds"]
        (batch,) = Loader(ds, 36, workers=0, transform=shardkit.images.eval(16))
        with torch.no_grad():
            return int((net(**batch)["logits"].argmax(1) == batch["cls"]).sum())


# --- Ray Train, which starts its workers itself -------------------------------------------

WATCHED = """
import os, sys, time
import torch.distributed as dist
sys.path.append({tests!r})
from trained import kill, watch

def is_recorded():
    saved = "saved-ray/shardkit"
    names = [name for name in os.listdir(saved) if name.startswith("checkpoint_2")]
    try:
        record = open(saved + "/checkpoint_manager_snapshot.json").read()
    except FileNotFoundError:
        return False
    return all(name in record for name in names)

def end():
    while not is_recorded():  # Ray's controller asks for what was reported, some seconds later
        time.sleep(0.1)
    dist.barrier()
    {end}

watch(Net, lambda: {notes!r} + str(dist.get_rank()), {last}, end)
"""

OF_WORKER = "kill()"
OF_ALL = 'os.kill(int(os.environ["DRIVER"]), 9); time.sleep(60)'


def train_by_ray(folder: Path, turn: int, last: int, end: str) -> list[list[str]]:
    """As :func:`train`; ``end`` is what is killed."""
    notes = str(folder / f"notes-{turn}-")
    watched = WATCHED.format(tests=str(TESTS), notes=notes, last=last, end=end)
    write(folder / "data.py", SCRIPTS["data.py"] + watched)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    # A short name: of the sockets that Ray makes there, a path has 107 characters at most.
    place = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with place as env["RAY_TMPDIR"], (folder / "out").open("wb") as out:
        code = subprocess.run(
            ["sh", "-c", f"DRIVER=$$ exec {sys.executable} with_ray.py"], cwd=folder, env=env,
            stdout=out, stderr=out, timeout=300, check=False,
        ).returncode  # fmt: skip
    told = (folder / "out").read_text()[-4000:]
    assert code == {OF_WORKER: 1 if last else 0, OF_ALL: -signal.SIGKILL}[end], told
    return [Path(f"{notes}{rank}").read_text().split() for rank in range(RANKS)]


def test_ray_goes_on_where_a_worker_or_all_of_it_was_killed(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason=WHY)
    (tmp_path / "pictures-lmdb").symlink_to(folder / "pictures-lmdb")
    write(tmp_path / "with_ray.py", SCRIPTS["with_ray.py"])
    expected = [undisturbed(folder, rank) for rank in range(RANKS)]
    # As above: the second run begins in mid-epoch, the third at an epoch's end.
    for turn, (first, last, end) in enumerate(
        [(0, 10, OF_WORKER), (8, 6, OF_ALL), (12, 0, OF_WORKER)]
    ):
        for seen, batches in zip(train_by_ray(tmp_path, turn, last, end), expected, strict=True):
            assert seen == batches[first : first + (last or len(batches))], f"run {turn}"


# --- torchtitan, without its Trainer, which wants GPUs -------------------------------------


def ids_of(folder: Path) -> Path:
    return pack_tokens(folder, [d % 100 for d in documents([5, 9, 3, 12, 7, 8, 6, 30] * 4)])


def sequences(path: Path, rank: int, steps: int) -> list[str]:
    """What torchtitan's model is given, by a plain loop over epochs."""
    ids = shardkit.TokenDataset(path, seq_len=8, boundaries="fit")
    loader = Loader(ids, 3, shuffle="full", workers=0, rank=rank, world_size=RANKS)
    found = []
    while len(found) < steps:
        for batch in loader:
            names = {"input": "inputs", "positions": "position_ids", "labels": "labels"}
            found.append(digest({name: batch[field] for name, field in names.items()}))
    assert len(loader) % 4, "a checkpoint each 4 steps is always at an epoch's end"
    assert len(loader) < steps - 4, "all is within one epoch"
    return found[:steps]


def test_torchtitan_saves_and_loads_the_pages_data_loader(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan", reason=WHY)
    (tmp_path / "ids").symlink_to(ids_of(tmp_path))
    write(tmp_path / "with_torchtitan.py", SCRIPTS["with_torchtitan.py"])
    expected = [sequences(tmp_path / "ids", rank, 14) for rank in range(RANKS)]
    for turn, (first, last) in enumerate([(0, 6), (4, 7), (8, 0)]):
        seen = run_noted([str(TESTS / "titan_loop.py")], tmp_path, turn, last)
        for rank, batches in zip(seen, expected, strict=True):
            assert rank == batches[first : first + len(rank)], f"run {turn}"
            assert len(rank) in ((last - 1, last) if last else (14 - first,))


SPLITTING = [
    "DataLoader(ds.stream(3), batch_size=None, num_workers=workers)",
    "DataLoader(ds, 3, sampler=shardkit.Sampler(ds), collate_fn=list, num_workers=workers)",
    "DataLoader(ds, batch_sampler=shardkit.BatchSampler(ds, 3), collate_fn=list)",
]

REFUSED = f"""
import accelerate, shardkit, sys, torch
from torch.utils.data import DataLoader
from accelerate.utils import DataLoaderConfiguration
ds = shardkit.open("pictures-lmdb")
accelerator = accelerate.Accelerator(cpu=True)
loader = shardkit.Loader(ds, 3)
assert accelerator.prepare(loader) is loader
for workers in (0, 1):
    for config in ({{"dispatch_batches": True}}, {{"dispatch_batches": False}}):
        accelerator.dataloader_config = DataLoaderConfiguration(**config)
        for given in ({", ".join(SPLITTING)}):
            try:
                next(iter(accelerator.prepare(given)))
            except shardkit.errors.UsageError as error:
                print("refused:", error)
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), 1.0)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=len(loader))
net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
rates = []
for _ in loader:
    optimizer.step()
    scheduler.step()
    rates.append(scheduler.get_last_lr()[0])
assert len(rates) == len(loader) and [rate < 1e-9 for rate in rates].index(True) == len(rates) - 1
accelerator.end_training()
"""


def test_accelerate_on_several_ranks_splits_nothing_once_more(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures-lmdb").symlink_to(folder / "pictures-lmdb")
    codes, outs = run_ranks([["-c", REFUSED]] * RANKS, tmp_path)
    assert codes == [0, 0], outs
    for out in outs:
        said = [line for line in out.splitlines() if line.startswith("refused: ")]
        assert len(said) == len(SPLITTING) * 4
        assert all("prepare() a shardkit.Loader" in line for line in said)


# --- Lightning, one process ---------------------------------------------------------------


def make() -> Loader:
    return Loader(Rows(), 3, shuffle="full", workers=0)


def plain(epochs: int, limit: int | None = None) -> list[list[int]]:
    loader = make()
    batches = [[b["row"].tolist() for b in loader] for _ in range(epochs)]
    return [rows for epoch in batches for rows in epoch[:limit]]


class Module(lightning.LightningModule):
    """Notes the rows that it trains on."""

    def __init__(self, loader: Any = make) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.loader = loader
        self.seen: list[list[int]] = []

    def train_dataloader(self) -> Any:
        return self.loader()

    def training_step(self, batch: dict[str, Any], number: int) -> torch.Tensor:
        self.seen.append(batch["row"].tolist())
        return self.layer(batch["row"][:, None].float()).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Validated(Module):
    """It validates, too, on a loader that is shuffled."""

    def __init__(self, loader: Any = make) -> None:
        super().__init__(loader)
        self.validated: list[tuple[int, list[int]]] = []

    def val_dataloader(self) -> Any:
        return make()

    def validation_step(self, batch: dict[str, Any], number: int) -> None:
        self.validated.append((self.current_epoch, batch["row"].tolist()))


def fit(module: Module, path: Path | None, saved: Path | None, **options: Any) -> None:
    callbacks = []
    if saved is not None:
        every = {"save_top_k": -1, "auto_insert_metric_name": False}
        callbacks = [
            ModelCheckpoint(saved, "step-{step}", every_n_train_steps=1, **every),
            ModelCheckpoint(saved, "epoch-{step}", every_n_epochs=1, **every),
        ]
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=bool(callbacks), callbacks=callbacks,
        default_root_dir=saved, **options,
    )  # fmt: skip
    trainer.fit(module, ckpt_path=path)


OPTIONS: dict[str, tuple[type[Module], dict[str, Any]]] = {
    "epochs": (Module, {"max_epochs": 3}),
    "steps": (Module, {"max_epochs": -1, "max_steps": 12}),
    "validation": (Validated, {"max_epochs": 3}),
    "validation and steps": (Validated, {"max_epochs": -1, "max_steps": 12}),
    "validation twice": (Validated, {"max_epochs": 3, "val_check_interval": 0.5}),
    "few batches": (Module, {"max_epochs": 3, "limit_train_batches": 2}),
    "one batch": (Module, {"max_epochs": 3, "limit_train_batches": 1}),
    "reloaded": (Module, {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_lightning_resumes_from_each_of_its_checkpoints(name: str, tmp_path: Path) -> None:
    kind, options = OPTIONS[name]
    whole = kind()
    fit(whole, None, tmp_path, **options)
    assert whole.seen == plain(3, options.get("limit_train_batches"))
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert {path.name.partition("-")[0] for path in paths} == {"step", "epoch"}
    for path in paths:
        first = torch.load(path, weights_only=False)["global_step"]
        resumed = kind()
        fit(resumed, path, None, **options)
        assert resumed.seen == whole.seen[first:], path.name


# --- transformers' Trainer, one process ---------------------------------------------------


class Net(torch.nn.Module):
    """Notes the rows that it trains on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(row.tolist())
        return {"loss": self.layer(row[:, None].float()).mean()}


class Fed(Trainer):
    loader: Any

    def get_train_dataloader(self) -> Any:
        return self.loader()


def trainer(loader: Any, folder: Path, **options: Any) -> Fed:
    arguments = TrainingArguments(
        str(folder), num_train_epochs=3, use_cpu=True, report_to="none", save_steps=1,
        disable_tqdm=True, **options,
    )  # fmt: skip
    made = Fed(Net(), arguments)
    made.loader = loader
    return made


def shard() -> Any:
    return DataLoaderShard(shardkit.Stream(Rows(), 3, shuffle="full"), batch_size=None)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_trainer_resumes_from_each_of_its_checkpoints(accumulated: int, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": accumulated}
    whole = trainer(shard, tmp_path, **options)
    whole.train()
    assert whole.model.seen == plain(3)
    steps = 4 if accumulated == 1 else 2
    for step in range(1, 3 * steps):
        resumed = trainer(shard, tmp_path / "resumed", **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        batches = 4 * (step // steps) + accumulated * (step % steps)
        assert resumed.model.seen == plain(3)[batches:]


def test_the_trainer_resumes_a_loader_at_an_epochs_end_and_says_what_else(tmp_path: Path) -> None:
    whole = trainer(make, tmp_path)
    whole.train()
    assert whole.model.seen == plain(3)
    at_end = trainer(make, tmp_path / "resumed")
    at_end.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert at_end.model.seen == plain(3)[4:]
    within = trainer(make, tmp_path / "resumed")
    with pytest.raises(SamplerMissingError, match=r"must return accelerate\.data_loader"):
        within.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    other = trainer(shard, tmp_path / "resumed")  # what it says, from the same checkpoint
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert other.model.seen == plain(3)[6:]


# --- accelerate, one process --------------------------------------------------------------


def test_accelerate_prepares_what_it_can() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    loader = make()
    assert accelerator.prepare(loader) is loader
    stream = shardkit.Stream(Rows(), 3, shuffle="full")
    prepared = accelerator.prepare(DataLoader(stream, batch_size=None))
    assert [[b["row"].tolist() for b in prepared] for _ in range(2)] == [plain(2)[:4], plain(2)[4:]]
    with pytest.raises(SamplerMissingError, match=r"register_for_checkpointing\(loader\)"):
        accelerator.skip_first_batches(loader, 1)

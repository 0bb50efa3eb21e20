"""What torchtitan's Trainer does with a data loader, on the CPU, as one rank: its own wants GPUs.

``python titan_loop.py NOTES LAST`` trains with the class of docs/trainers.md, built from its
``Config``, saved and loaded by torchtitan's checkpoint manager. SIGKILL comes in the step that has
the LAST batch, unless that is 0.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from trained import watch

STEPS = 14
EVERY = 4


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(100, 100)

    def forward(self, input: Any, positions: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(self.layer(input).flatten(0, 1), labels.flatten())


class Progress:
    """As the Trainer is a state of its own."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def main(notes: str, last: int) -> None:
    sys.path.insert(0, os.getcwd())
    from with_torchtitan import Packed  # the page's own

    watch(Net, lambda: notes, last)
    dist.init_process_group("gloo")
    loader = Packed.Config(dataset_path="ids").build(
        dp_world_size=dist.get_world_size(), dp_rank=dist.get_rank(), tokenizer=None, seq_len=8,
        local_batch_size=3, snapshot_every_n_steps=EVERY,
    )  # fmt: skip
    net, progress = Net(), Progress()
    optimizers = default_adamw(implementation="for-loop").build(model_parts=[net])
    schedulers = LRSchedulersContainer.Config().build(optimizers=optimizers, training_steps=STEPS)
    checkpointer = CheckpointManager.Config(enable=True, interval=EVERY).build(
        dataloader=loader, model_parts=[net], optimizers=optimizers, lr_schedulers=schedulers,
        states={"train_state": progress}, sd_adapter=None, base_folder="saved-torchtitan",
    )  # fmt: skip
    checkpointer.load()
    batches = iter(loader)
    while progress.step < STEPS:
        progress.step += 1
        inputs, labels = next(batches)
        net(**inputs, labels=labels).backward()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        checkpointer.save(progress.step)
        dist.barrier()
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

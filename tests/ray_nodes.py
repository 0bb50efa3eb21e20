"""A Ray cluster of several nodes, all on this machine, and what may happen to its processes."""

from __future__ import annotations

import logging
import os
import random
import signal
from pathlib import Path
from types import TracebackType
from typing import Any

from shardkit.system.resources import usage_of


class Nodes:
    """A head that does no tasks, and nodes of one CPU each. A context manager.

    Nothing else on the machine is looked at or ended: all processes are children of these raylets.
    """

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        logging.getLogger("ray").setLevel(logging.ERROR)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80_000_000}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: list[Any] = []
        self._used: dict[tuple[int, int], float] = {}
        for _ in range(count):
            self.add()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=80_000_000))

    def busy(self) -> list[int]:
        """The processes that do a task just now."""
        raylets = [raylet_of(node) for node in self._nodes]
        return [pid for raylet in raylets for pid in _children(raylet) if _is_busy(pid)]

    def kill_worker(self, rng: random.Random) -> bool:
        """kill -9 a process in the middle of a task; False if none does any."""
        pids = self.busy()
        if not pids:
            return False
        try:
            os.kill(rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def kill_raylet(self) -> None:
        """kill -9 what leads a node: Ray gives the node up, and its workers end."""
        node = self._nodes.pop(0)
        os.kill(raylet_of(node), signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def cpu_s(self) -> float:
        """Seconds on a core of all processes of the cluster that lived at any call of this: raylets
        do not count their children that have ended."""
        nodes = [self._cluster.head_node, *self._nodes]
        led = [int(one[0].process.pid) for node in nodes for one in node.all_processes.values()]
        for pid in {pid for leader in led for pid in (leader, *_children(leader))}:
            if usage := usage_of(pid):
                self._used[pid, usage.started] = usage.cpu_s
        return sum(self._used.values())

    def close(self) -> None:
        self._cluster.shutdown()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(word) for word in text.split()]


def _is_busy(pid: int) -> bool:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return title.startswith((b"ray::packing", b"ray::verifying"))

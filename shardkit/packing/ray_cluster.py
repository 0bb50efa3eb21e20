"""A Ray cluster: connected to, or started for one call, and plain functions run there as tasks.

Ray is imported by who connects, and by nobody else. https://docs.ray.io/en/latest/ray-core/tasks
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import shardkit
from shardkit.errors import ShardkitError, StorageError, UsageError
from shardkit.packing.engine import Answer, error_answer
from shardkit.remote.urls import CACHE_BYTES, CACHE_DIR, settings_of
from shardkit.system.resources import allowance

_PASSING = {errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNRESET}
_PASSING |= {errno.EREMOTEIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH}
"""What a shared file system says when its server restarts, or a network fails: that passes. That
the disk is full, or a file is bad, does not."""

PASSING_S = 3.0
"""Before such a job is begun again."""

Told = dict[str, Any]
"""Plain values: what all calls are told, or one."""


class PassingError(Exception):
    """A job failed in a way that may pass: Ray begins it again, on another node perhaps."""


def told_to_tasks(is_remote: bool) -> Told:
    """What any task must know of this process: the release, and for what lies behind a URL, how it
    is reached."""
    names = (CACHE_DIR, CACHE_BYTES)
    kept = {name: os.environ[name] for name in names if name in os.environ}
    environment = settings_of(os.environ) | kept if is_remote else {}
    return {"release": shardkit.__version__, "environment": environment}


def answered(told: Told, do: Callable[[], Any]) -> Answer:
    """In a task: what ``do`` comes to, as plain values.

    Raises:
        PassingError: it failed in a way that may pass.
    """
    os.environ.update(told["environment"])
    try:
        if told["release"] != shardkit.__version__:
            raise UsageError(
                f"{here()} has shardkit {shardkit.__version__}, and {told['release']} asks: install"
                " the same release on all machines of the cluster"
            )
        return {"done": do(), "node": here()}
    except ShardkitError as error:
        if _is_passing(error):
            time.sleep(PASSING_S)
            raise PassingError(str(error)) from error
        return {**error_answer(error), "node": here()}


def here() -> str:
    return f"node {os.uname().nodename}"


def _is_passing(error: BaseException | None) -> bool:
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__
    return error is not None and error.errno in _PASSING


MAX_RETRIES = 10
"""How often a task is begun again whose worker or node died. Preempted nodes are many in a long
pack; a job that kills whoever does it is told after so many."""

TASKS_PER_CPU = 2
"""What the cluster knows of at once: a task that waits hides the way to the driver and back."""

_ROOM_S = 5.0
"""How often a cluster, which may grow, is asked for its size."""

WITHOUT_CPU_S = 300.0
"""How long to wait for a cluster without any CPU: one that grows on demand is starting some, or the
nodes are gone and nobody starts others."""

_LOOK_S = 20.0
"""How often that is asked while nothing ends."""

KNOCK_S = 10.0
"""For the head of a cluster to answer."""

_STORE_BYTES = 100_000_000
"""For objects, in a cluster of our own: tasks take and return some hundred bytes."""


class RayCluster:
    """A connection to a cluster, and the calls of one function that are under way there. It ends
    with the block; so does the cluster, if it was started here.

    Where this process is connected already, that connection is used, and stays.
    """

    def __init__(
        self,
        address: str | None,
        workers: int | None,
        function: Callable[[Told, Told], Answer],
        name: str,
    ) -> None:
        """Connect.

        Args:
            workers: tasks at once; None for as many as the cluster has CPUs.
            function: of a module that nodes have, too; each call is a task of one CPU. ``name``:
                what it does, in errors.

        Raises:
            UsageError: this process is connected to a cluster, and another is given.
            StorageError: no cluster answers there, or none can be started.
        """
        import ray

        self._ray = ray
        self._workers = workers
        self._name = name
        self._most = 0
        self._asked = -_ROOM_S
        self._under_way: dict[Any, tuple[Told, str]] = {}
        self._told: tuple[Told, Any] | None = None
        self._is_own = not ray.is_initialized()
        if self._is_own:
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local", workers)
        elif address is not None:
            raise UsageError("address is given, and this process is connected to Ray: leave it out")
        options = {
            "num_cpus": 1,
            "max_retries": MAX_RETRIES,
            "retry_exceptions": [PassingError],
            "scheduling_strategy": "SPREAD",  # reading and writing are spread over nodes, too
        }
        self._remote = ray.remote(**options)(function)

    @property
    def most_tasks(self) -> int:
        """Return how many tasks the cluster should know of at once."""
        if self._workers is not None:
            return self._workers
        if time.monotonic() - self._asked >= _ROOM_S:
            self._asked = time.monotonic()
            self._most = TASKS_PER_CPU * self._num_cpus()
        return max(self._most, TASKS_PER_CPU)  # one that grows on demand may have nothing yet

    def _num_cpus(self) -> int:
        """Return the number of CPUs of all living nodes, busy or not."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def __len__(self) -> int:
        """Return how many calls are under way."""
        return len(self._under_way)

    def begin(self, told: Told, item: Told, what: str) -> None:
        """Have ``function(told, item)`` called somewhere; ``what`` it is, in errors."""
        if self._told is None or self._told[0] is not told:
            self._told = told, self._ray.put(told)  # once: a pickled dataset may be in it
        call = self._remote.options(name=f"{self._name} {what}")
        self._under_way[call.remote(self._told[1], item)] = item, what

    def ended(self, wait: bool) -> Iterator[tuple[Told, Answer]]:
        """Yield what calls that have ended came to; wait for one, if asked to and any is under way.

        Raises:
            StorageError: a call could not be brought to an end, however often it was begun; or
                there is no CPU that could do any.
        """
        if not self._under_way:
            return
        under_way = list(self._under_way)
        had_any = time.monotonic()
        while wait and not self._ray.wait(under_way, num_returns=1, timeout=_LOOK_S)[0]:
            if self._num_cpus():
                had_any = time.monotonic()
            elif time.monotonic() - had_any > WITHOUT_CPU_S:
                raise StorageError(
                    f"the Ray cluster has had no CPU for {WITHOUT_CPU_S:.0f} s, so nothing goes on;"
                    " start nodes, and run the same command again"
                )
        done, _ = self._ray.wait(under_way, num_returns=len(under_way), timeout=0)
        for call in done:
            item, what = self._under_way.pop(call)
            yield item, self._answer(call, f"{self._name} {what}")

    def _answer(self, call: Any, what: str) -> Answer:
        errors, again = self._ray.exceptions, "run the same command again"
        try:
            answer: Answer = self._ray.get(call)
        except errors.RayTaskError as error:
            cause = error.cause
            said = f"{what}: {type(cause).__name__}: {cause}; {again} to go on"
            if isinstance(cause, PassingError):
                said = f"{cause}; tried {MAX_RETRIES + 1} times; {again} to go on"
            elif isinstance(cause, ModuleNotFoundError) and "shardkit" in (cause.name or ""):
                said = (
                    f"{what}: a node has no shardkit, or another release ({cause}); install the"
                    f" same on all machines of the cluster, and {again}"
                )
            raise StorageError(said) from error
        except errors.RayError as error:
            why = str(error).strip().partition("\n")[0]
            raise StorageError(
                f"{what}: given up by Ray, which begins a task {MAX_RETRIES} times more: {why};"
                f" {again} to go on"
            ) from error
        return answer

    def close(self) -> None:
        """Have no call under way any more. What cannot be reached may still be running."""
        try:
            for call in self._under_way:
                self._ray.cancel(call, force=True)
        finally:
            if self._is_own:
                self._ray.shutdown()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _connect(ray: Any, address: str, workers: int | None) -> None:
    """Raise StorageError if no cluster answers there, or none can be started."""
    given: dict[str, Any] = {
        "address": address,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    if address == "local":
        given["num_cpus"] = allowance().cpus if workers is None else workers
        given["include_dashboard"] = False
        given["object_store_memory"] = _STORE_BYTES
    # Ray sends statistics of a cluster that is started to its makers, unless told not to, and takes
    # over SIGTERM.
    name = "RAY_USAGE_STATS_ENABLED"
    was_set = name in os.environ
    os.environ.setdefault(name, "0")
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # where nobody listens, Ray itself goes on asking for minutes
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
        ray.init(**given)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise StorageError(_no_cluster(address, error)) from error
    finally:
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        if not was_set:
            del os.environ[name]


def _no_cluster(address: str, error: Exception) -> str:
    why = str(error).strip().partition("\n")[0]
    if "uthentication token" in "".join(traceback.format_exception(error)):  # a cause may say it
        return (
            f"the Ray cluster at {address} wants a token, and this process has none or a wrong one:"
            " set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to that of the head"
        )
    if address == "local":
        return f"no Ray cluster could be started on this machine: {why}"
    return (
        f"no Ray cluster answers at {address}: {why}; `ray status` on its head says whether it runs"
    )

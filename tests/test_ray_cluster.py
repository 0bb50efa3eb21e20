"""What a task makes of errors, which needs no Ray: what goes back as it is, and what may pass."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shardkit.errors import SampleError, StorageError
from shardkit.packing import ray_engine
from shardkit.packing.engine import rebuild
from shardkit.packing.ray_engine import PassingError, RayCluster, answered, here, told_to_tasks
from shardkit.system.refusals import os_errors


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "PASSING_S", 0.0)


def refusing(number: int) -> Callable[[], Any]:
    def do() -> None:
        with os_errors("packing shard train-00000"):
            raise OSError(number, os.strerror(number), "/shared/x")

    return do


def test_what_is_done_comes_back_with_the_node() -> None:
    assert answered(told_to_tasks(False), lambda: 3) == {"done": 3, "node": here()}


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN])
def test_a_server_that_restarts_passes(number: int) -> None:
    with pytest.raises(PassingError, match=r"packing shard train-00000: .* \(/shared/x\)"):
        answered(told_to_tasks(False), refusing(number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_full_disk_does_not(number: int) -> None:
    name, words = answered(told_to_tasks(False), refusing(number))["error"]
    assert type(rebuild(name, words)) is StorageError and words.startswith("packing shard train")


def test_a_bad_input_does_not_either() -> None:
    def do() -> None:
        raise SampleError("a.jpg: not an image")

    error = rebuild(*answered(told_to_tasks(False), do)["error"])
    assert type(error) is SampleError and str(error) == "a.jpg: not an image"


def test_another_release_is_refused() -> None:
    told = told_to_tasks(False) | {"release": "9.8.7"}
    name, words = answered(told, lambda: 3)["error"]
    assert name == "UsageError" and "and 9.8.7 asks: install the same release on all" in words


class Deserted:
    """Ray, connected to a cluster that has lost all nodes."""

    def is_initialized(self) -> bool:
        return True

    def remote(self, **_: object) -> Callable[[object], object]:
        return lambda function: function

    def wait(self, calls: list[object], **_: object) -> tuple[list[object], list[object]]:
        return [], calls

    def cluster_resources(self) -> dict[str, float]:
        return {"memory": 1e9}


def test_a_cluster_without_any_cpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "WITHOUT_CPU_S", 0.0)
    monkeypatch.setitem(sys.modules, "ray", Deserted())
    cluster = RayCluster(None, None, lambda told, item: {}, "packing")
    cluster._under_way["call"] = ({}, "train-00000")
    with pytest.raises(StorageError, match="has had no CPU for 0 s, so nothing goes on; start"):
        list(cluster.ended(wait=True))


def test_credentials_go_along_only_for_what_is_behind_a_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in str(told_to_tasks(False))
    assert told_to_tasks(True)["environment"]["AWS_SECRET_ACCESS_KEY"] == "secret"


@pytest.mark.parametrize("is_cause", [False, True])
def test_a_cluster_that_wants_a_token_is_said(
    is_cause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray 2.60 says it as an error of its own, or deep in the cause of one that says nothing."""

    class RayError(Exception):
        pass

    class Ray:
        exceptions = SimpleNamespace(RayError=RayError)
        is_initialized = staticmethod(lambda: False)
        shutdown = staticmethod(lambda: None)

        @staticmethod
        def init(**options: object) -> None:
            error = RayError("Authentication token is missing or incorrect. Ensure that")
            if is_cause:
                raise ConnectionError("Failed to connect to Ray cluster at 1.2.3.4:6") from error
            raise error

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setattr(
        ray_engine.socket, "create_connection", lambda *args: SimpleNamespace(close=lambda: None)
    )
    with pytest.raises(StorageError, match="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN"):
        RayCluster("1.2.3.4:6", None, lambda told, item: {}, "packing")

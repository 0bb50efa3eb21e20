"""Requests to one server are limited, and what somebody waits for goes first."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.remote.block_cache import MOST_BYTES, MOST_REQUESTS, RequestLimiter


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_bounds_hold_and_all_are_admitted(seed: int) -> None:
    draws, limiter, running = random.Random(seed), RequestLimiter(), list[int]()

    async def one(number: int) -> int:
        size = draws.choice([1, 1 << 20, MOST_BYTES // 3, MOST_BYTES + 1])
        with_error = draws.random() < 0.2
        async with limiter.slot(SimpleNamespace(is_ahead=draws.random() < 0.5), size):
            running.append(size)
            assert len(running) <= MOST_REQUESTS
            assert sum(running) <= MOST_BYTES or len(running) == 1
            await asyncio.sleep(draws.choice([0, 0, 0.001]))
            running.remove(size)
            if with_error:
                raise OSError
        return number

    async def test() -> list[int | BaseException]:
        return await asyncio.gather(*map(one, range(300)), return_exceptions=True)

    got = asyncio.run(test())
    assert all(isinstance(one, OSError) or one == number for number, one in enumerate(got))
    assert limiter._num_requests == limiter._num_bytes == 0


def test_what_somebody_waits_for_goes_first() -> None:
    """Also what was only asked for ahead at first."""
    order: list[object] = []

    async def test() -> None:
        limiter = RequestLimiter()
        requests = [SimpleNamespace(name=number, is_ahead=True) for number in range(4)]
        requests.append(SimpleNamespace(name="now", is_ahead=False))

        async def ask(request: SimpleNamespace) -> None:
            async with limiter.slot(request, MOST_BYTES):
                order.append(request.name)
                await asyncio.sleep(0.01)

        asking = [asyncio.ensure_future(ask(request)) for request in requests]
        await asyncio.sleep(0)
        requests[3].is_ahead = False
        await asyncio.gather(*asking)

    asyncio.run(test())
    assert order == [0, 3, "now", 1, 2]


def test_who_waits_behind_a_server_that_does_not_answer_fails_with_the_first() -> None:
    async def test() -> None:
        limiter = RequestLimiter()
        request = SimpleNamespace(is_ahead=False)

        async def ask() -> None:
            async with limiter.slot(request, MOST_BYTES):
                pass

        async with limiter.slot(request, MOST_BYTES):
            waiting = [asyncio.ensure_future(ask()) for _ in range(3)]
            await asyncio.sleep(0)
            limiter.fail_waiting(TimeoutError("no answer"))
            for one in waiting:
                with pytest.raises(TimeoutError, match="no answer"):
                    await one
        await ask()

    asyncio.run(test())

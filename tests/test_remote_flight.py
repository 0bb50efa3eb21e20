"""How many requests a place is asked at once, and for how long: decisions, and the gate by them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.remote import flight, gate
from shardkit.remote.flight import FEWEST, FIRST, MOST, MOST_BYTES, Flight
from shardkit.remote.gate import Gate, Patience, next_pause

EVENTS = st.sampled_from(["begin", "end", "answer", "refuse", "let go"])


@given(st.lists(st.tuples(EVENTS, st.integers(1, 1 << 27))))
def test_bounds_hold_whatever_happens(events: list[tuple[str, int]]) -> None:
    place, running, held, now = Flight(), [], [], 0.0
    for event, number in events:
        now += 0.01
        if event == "begin" and place.has_room(number):
            place.begin(number)
            running.append(number)
        elif event == "refuse":
            place.refused(now)
        elif event == "let go" and held:
            place.let_go(held.pop())
        elif running and event in ("end", "answer"):
            num_bytes = running.pop()
            place.end(num_bytes)
            if event == "answer":
                place.answered(num_bytes, 0.1, now)
                place.hold(num_bytes)
                held.append(num_bytes)
        assert FEWEST <= place.most <= MOST
        assert len(running) == place.running and sum(running) == place.num_bytes
        assert sum(held) == place.held
        assert place.num_bytes + place.held <= MOST_BYTES or len(running + held) == 1
        assert flight.TIMEOUT_S[0] <= place.timeout() <= flight.TIMEOUT_S[1]


def _flown(place: Flight, seconds_of: Callable[[int], float], rounds: int) -> None:
    """Full all the time; a request takes so long where so many are made at once."""
    now = 1.0
    for _ in range(rounds):
        together = place.most
        for _ in range(together):
            place.begin(1 << 18)
        now += seconds_of(together)
        for _ in range(together):
            place.end(1 << 18)
            place.answered(1 << 18, seconds_of(together), now)


def test_more_at_once_while_that_brings_more() -> None:
    """Of a place that answers all in 20 ms, and of one that answers 1,000 a second at most."""
    free, bound = Flight(), Flight()
    _flown(free, lambda together: 0.02, 60)
    _flown(bound, lambda together: max(0.02, together / 1000), 200)
    assert free.most > 200
    assert bound.most < 100


def test_a_busy_place_is_asked_less_and_all_that_fail_together_count_once() -> None:
    place = Flight()
    for _ in range(10):
        place.refused(1.0)
    assert place.most == FIRST // 2


def test_second_requests_are_few() -> None:
    place = Flight()
    assert place.second_after() is None
    seconds = 0
    for number in range(5000):
        place.answered(1, 0.02 if number % 100 else 3.0, number / 10)
        if place.second_after() is not None:
            place.asked_again()
            seconds += 1
    assert 0 < seconds <= 100


@given(st.floats(0, 10), st.booleans())
def test_pauses(last: float, is_busy: bool) -> None:
    pause = next_pause(last, is_busy=is_busy)
    assert (gate.BUSY_PAUSE_S if is_busy else gate.PAUSE_S) <= pause <= gate.LONGEST_PAUSE_S


def _asked(requests: list[Callable[[], Awaitable[int]]], seconds: float = 5) -> list[object]:
    async def all_of_them() -> list[object]:
        place = Gate()
        asked = (place.answer(one, 1 << 20, Patience(seconds)) for one in requests)
        return list(await asyncio.gather(*asked, return_exceptions=True))

    return asyncio.run(all_of_them())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_all_who_ask_are_answered(seed: int) -> None:
    draws = random.Random(seed)

    def request(number: int) -> Callable[[], Awaitable[int]]:
        async def one() -> int:
            await asyncio.sleep(draws.choice([0, 0, 0.001]))
            if draws.random() < 0.2:
                raise OSError("status code: 503")
            return number

        return one

    got = _asked([request(number) for number in range(300)])
    assert all(isinstance(one, OSError) or one == number for number, one in enumerate(got))


def test_who_waits_behind_a_silent_place_is_told_in_time() -> None:
    async def silent() -> int:
        await asyncio.sleep(60)
        return 0

    got = _asked([silent] * 100, 0.3)
    assert all(isinstance(one, TimeoutError) for one in got)


def test_what_is_in_memory_counts_and_is_not_the_silence_of_the_place() -> None:
    """It waits for the disk, for longer than the place may be silent; and goes on to wait for its
    turn, once others have gone before it."""
    made: list[float] = []

    async def request() -> int:
        made.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.14)
        return 5

    async def test() -> None:
        place, now = Gate(), asyncio.get_running_loop().time
        with place.holding(MOST_BYTES):
            place.flight.most = 2
            asking = [
                asyncio.ensure_future(place.answer(request, 1 << 20, Patience(0.3)))
                for _ in range(4)
            ]
            await asyncio.sleep(0.5)
            assert not made and not any(one.done() for one in asking)
            freed = now()
        assert await asyncio.gather(*asking) == [5] * 4
        assert made[1] - freed < 0.1
        assert place.flight.held == place.flight.num_bytes == 0

    asyncio.run(test())


def test_who_waits_behind_a_silent_place_is_told_though_something_is_in_memory() -> None:
    async def silent() -> int:
        await asyncio.sleep(60)
        return 0

    async def test() -> None:
        place, began = Gate(), time.monotonic()
        with place.holding(1 << 20):
            asking = [place.answer(silent, 1 << 20, Patience(0.3)) for _ in range(100)]
            got = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(one, TimeoutError) for one in got)
        assert time.monotonic() - began < 0.9

    asyncio.run(test())


def test_a_slow_answer_is_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    async def slow_at_first() -> int:
        calls.append(0)
        await asyncio.sleep(30 if len(calls) == 1 else 0)
        return len(calls)

    monkeypatch.setattr(Flight, "second_after", lambda self: 0.01)
    assert _asked([slow_at_first]) == [2]


def test_what_is_alone_is_made_once_and_takes_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large object that is sent takes longer than the small answers before it."""
    calls: list[int] = []

    async def slow() -> int:
        calls.append(0)
        await asyncio.sleep(0.3)
        return len(calls)

    monkeypatch.setattr(Flight, "second_after", lambda self: 0.01)
    monkeypatch.setattr(Flight, "timeout", lambda self: 0.1)
    assert asyncio.run(Gate().answer(slow, 0, Patience(5), is_alone=True)) == 1


def test_what_somebody_waits_for_goes_first() -> None:
    """Also what was only asked for ahead at first."""
    order: list[object] = []

    async def test() -> None:
        place = Gate()
        place.flight.most = 1
        ahead = [Patience(5) for _ in range(4)]

        def ask(name: object, patience: Patience) -> asyncio.Future[None]:
            async def request() -> None:
                order.append(name)
                await asyncio.sleep(0.01)

            return asyncio.ensure_future(place.answer(request, 1, patience))

        for patience in ahead:
            patience.is_ahead = True
        asking = [ask(number, patience) for number, patience in enumerate(ahead)]
        asking.append(ask("now", Patience(5)))
        await asyncio.sleep(0)
        ahead[3].is_ahead = False
        await asyncio.gather(*asking)

    asyncio.run(test())
    assert order == [0, 3, "now", 1, 2]

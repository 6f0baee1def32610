from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

import pytest

from tests.reader import chaos


@pytest.fixture(params=[5e-3, 1e-5], ids=["threads switch seldom", "threads switch often"])
def _switching(request: pytest.FixtureRequest) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
def test_every_record_comes_once_and_in_order_whatever_happens() -> None:
    for _ in range(200):
        chaos.run(random.randrange(2**32))


@pytest.mark.soak
@pytest.mark.usefixtures("_switching")
def test_five_thousand_runs_reach_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    for _ in range(5_000):
        chaos.run(random.randrange(2**32))
    with capsys.disabled():
        print(f" 5,000 runs in {time.perf_counter() - began:.0f} s", end="")

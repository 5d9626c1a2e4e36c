"""`crossknn try --minutes M` plans no more than M minutes, and does not take longer."""

import random
import re
import time
from itertools import product

import pytest
from tiny_models import jsonl

from crossknn.cli.app import run
from crossknn.errors import InputError
from crossknn.trial.plan import Plan

SPEEDS, ENCODING = (3.0, 80.0, 700.0, 20_000.0), (0.0, 0.001, 0.05)
CASES = [*product(SPEEDS, ENCODING, (100, 800, 10_000), (3, 8, 20, 300, 6_000))]


def planned(minutes, speed, encoding, n, judged):
    speeds = {"pairs_per_second": speed, "seconds_per_text": encoding}
    return Plan.within(minutes, **speeds, items=n, judged=judged, n_queries=20, budget=50)


@pytest.mark.parametrize("minutes", [0.1, 1, 4, 10, 120])
def test_no_plan_is_longer_than_its_minutes(minutes):
    """In a report, 4 minutes were planned as 13.2; what cannot fit is refused with what can."""
    for case in CASES:
        try:
            plan = planned(minutes, *case)
        except InputError as error:
            needed = float(re.search(r"give --minutes ([\d.]+)", str(error))[1])
            assert needed > minutes
            assert planned(needed, *case).minutes <= needed + 1e-9
            continue
        speed, encoding, n, judged = case
        pairs = plan.queries * plan.items + plan.verdict_pairs
        assert plan.minutes == pytest.approx((plan.items * encoding + pairs / speed) / 60)
        assert plan.minutes <= minutes + 1e-9, case
        assert min(8, judged) <= plan.queries <= plan.judged <= judged
        assert 100 <= plan.items <= n


def test_time_enough_takes_everything():
    plan = planned(600, 700.0, 0.001, 10_000, 300)
    assert (plan.items, plan.queries, plan.judged) == (10_000, 20, 300)
    assert plan.budgets == [25, 50, 100]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("bra", "sto", "kli", "ver") for b in ("ta", "lo", "ke", "di")]
    rows = (" ".join(draw.choices(words, k=14)) for _ in range(3_000))
    jsonl(tmp_path / "docs.jsonl", ({"title": text[:20], "text": text} for text in rows))


@pytest.mark.slow
def test_a_trial_keeps_to_its_minutes(texts, capsys):
    began = time.monotonic()
    assert run(["try", "docs.jsonl", "--minutes", "0.4"]) == 0
    took = time.monotonic() - began
    plan = re.search(r"fit into 0.4 minutes.* ([\d.]+) minutes, or less", capsys.readouterr().err)
    assert float(plan[1]) <= 0.4
    assert took < 70  # the page, the searches and loading come on top, and a machine may be busy


def test_too_few_minutes_are_refused_with_what_is_needed(texts, capsys):
    assert run(["try", "docs.jsonl", "--minutes", "0.1", "--budget", "1000"]) == 2
    needed = r"0\.1 minutes are too few: .* 8 queries with 2000 items .* give --minutes [\d.]+$"
    assert re.search(needed, capsys.readouterr().err.strip())

"""Requests made of /openapi.json: no answer is an error of the service, and all are as described."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from service_helpers import TEXTS, Words, served

KEY = {"Authorization": "Bearer a-good-key"}
KNOWN = {"name": "docs", "item_id": TEXTS[0]["id"], "index": "docs", "method": "axn", "k": 3}
"""What a schema cannot say: the names of this service."""


@pytest.fixture(autouse=True)
def imported():
    """Where it is used: that takes two seconds."""
    global schemathesis, GenerationMode, positive_data_acceptance
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import positive_data_acceptance


def with_known_names(case):
    for given_values in (case.path_parameters, case.body):
        if isinstance(given_values, dict):
            given_values.update({k: v for k, v in KNOWN.items() if given_values.get(k) is not None})


@pytest.mark.parametrize("count", [4, pytest.param(250, marks=pytest.mark.slow)])
def test_answers_are_as_described(indexes, count):
    asked = Counter()
    with served(indexes, Words(), keys=["a-good-key"]) as client:
        schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
        for operation in (found.ok() for found in schema.get_all_operations()):
            takes = operation.body or operation.path_parameters or operation.query
            for mode in GenerationMode if takes else [GenerationMode.POSITIVE]:
                asked.update(answers_of(operation, mode, count))
    if count > 100:  # so many reach an answer of each operation
        assert all(asked[name, True] for name, _ in asked), asked


def answers_of(operation, mode, count):
    """Names of the operation, with whether it was answered."""
    found = []

    @seed(0)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        if mode is GenerationMode.POSITIVE:
            with_known_names(case)
        answer = case.call_and_validate(headers=KEY, excluded_checks=[positive_data_acceptance])
        found.append((operation.label, answer.status_code < 300))

    check()
    return found

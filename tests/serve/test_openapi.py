"""The server against its own description, by schemathesis: what it documents is what it does."""

import copy
import itertools

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


@pytest.fixture(scope="module")
def described(listening, detector):
    from farout.serve import create_app

    url, _, _ = listening(create_app(copy.deepcopy(detector), max_wait=0))
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_answers_are_as_described(described):
    """Requests made from the description, right ones and wrong ones."""
    from schemathesis.specs.openapi import checks

    asked = [
        schemathesis.checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    seen = set()
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    operations = [result.ok() for result in described.get_all_operations()]
    for operation, mode in itertools.product(operations, modes):
        if mode == modes[1] and operation.path != "/v1/score":
            continue  # nothing to get wrong

        @settings(
            max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def conforms(case):
            response = case.call()
            case.validate_response(response, checks=asked)
            seen.add((case.method, case.path, response.status_code))

        conforms()
    assert {path for _, path, status in seen if status == 200} >= {"/v1/detector", "/v1/drift", "/metrics", "/readyz"}
    assert any(path == "/v1/score" and status == 422 for _, path, status in seen)

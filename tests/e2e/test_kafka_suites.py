"""Other people's suites pass against OneLog as they do against Kafka, but for what is stated."""

import os
from pathlib import Path

import pytest

from tests.e2e.kafka_suites import SUITES, Suite, Workplace, all_outcomes, counts

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(3_600)]

STATED = {
    # There are no ACLs, and no users with passwords.
    "test_admin_integration.test_create_describe_delete_acls",
    "test_basic_operations.test_basic_operations",
    "test_user_scram_credentials.test_user_scram_credentials",
}
"""docs/protocols/kafka.md says why."""


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_passes(suite: Suite, tmp_path: Path) -> None:
    variable = suite.package.source_variable
    if variable and variable not in os.environ:
        pytest.skip(f"{variable} does not say where its tests are")
    place = Workplace(tmp_path)
    place.run(suite, "onelog")
    found = all_outcomes(place.results(suite, "onelog"))
    print(f"{suite.name}: {counts(found)}")
    assert {name for name, how in found.items() if how == "failed"} <= STATED

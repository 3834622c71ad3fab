"""Other people's suites pass against OneLog as they do against Kafka, but for what is stated."""

import os
from pathlib import Path

import pytest

from tests.e2e.kafka_suites import SUITES, Suite, Workplace, all_outcomes, counts

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(3_600)]

STATED = {
    # It sets consumer.session.timeout.ms of a group; it fails with Kafka, too.
    "confluent-kafka, consumer groups": ("test_incremental_alter_configs.",),
    # There is no schema registry, neither here nor with Kafka.
    "confluent-kafka, share groups": ("test_share_consumer_deserialization.test_schema_registry",),
}
"""What the names of those begin with that are known to fail."""


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_passes(suite: Suite, tmp_path: Path) -> None:
    variable = suite.package.source_variable
    if variable and variable not in os.environ:
        pytest.skip(f"{variable} does not say where its tests are")
    place = Workplace(tmp_path)
    place.run(suite, "onelog")
    found = all_outcomes(place.results(suite, "onelog"))
    print(f"{suite.name}: {counts(found)}")
    stated = STATED.get(suite.name, ())
    failed = [name for name, how in found.items() if how == "failed"]
    assert [name for name in failed if not name.startswith(stated)] == []

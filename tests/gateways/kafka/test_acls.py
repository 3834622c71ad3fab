"""There are no ACLs: requests about them are answered as by a Kafka without an authorizer."""

from pathlib import Path

from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import raw


async def test_rules_are_neither_told_nor_taken(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        told = await client.ask(ApiKey.DESCRIBE_ACLS, 3)
        made = await client.ask(ApiKey.CREATE_ACLS, 3, {"creations": [{}, {}]})
        gone = await client.ask(ApiKey.DELETE_ACLS, 3, {"filters": [{}]})
        assert (told["error_code"], told["resources"]) == (ErrorCode.SECURITY_DISABLED, [])
        for results in (made["results"], gone["filter_results"]):
            assert {each["error_code"] for each in results} == {ErrorCode.SECURITY_DISABLED}
        assert len(made["results"]) == 2

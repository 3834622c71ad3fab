"""There are no ACLs and no users: requests about them are answered legally, and change nothing."""

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


async def test_there_are_no_users_and_none_can_be_made(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        for users, codes in ((None, []), ([{"name": "ann"}], [ErrorCode.RESOURCE_NOT_FOUND])):
            told = await client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users})
            assert (told["error_code"], [each["error_code"] for each in told["results"]]) == (
                0,
                codes,
            )
        made = {"upsertions": [{"name": "ann", "mechanism": 1}], "deletions": [{"name": "ann"}]}
        (told,) = (await client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, made))["results"]
        assert (told["user"], told["error_code"]) == ("ann", ErrorCode.UNSUPPORTED_SASL_MECHANISM)

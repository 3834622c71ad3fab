"""Dead letters for tests: messages that a consumer got, sent back, and gave up."""

from onelog.wire.remoting.codes import RequestCode
from tests.client.live_cluster import LiveCluster
from tests.gateways.remoting.live import Client


async def give_up(client: Client, message_id: str, group: str = "readers") -> None:
    """What a consumer does with a message that it does not want to see again."""
    answer = await client.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        offset=int(message_id[16:], 16),
        group=group,
        delayLevel=-1,
        originTopic="orders",
        originMsgId=message_id,
        unitMode="false",
        maxReconsumeTimes=16,
    )
    assert answer.code == 0, answer.remark


async def dead_letters(
    cluster: LiveCluster, count: int, group: str = "readers", broker: int = 0, begin: int = 0
) -> list[str]:
    """So many dead letters of a group, that were messages of topic orders; their first ids."""
    client = await cluster.client(broker)
    ids = []
    for number in range(begin, begin + count):
        sent = await cluster.send(
            "orders",
            b"body %d" % number,
            broker=broker,
            KEYS=f"k{number} all",
            TAGS="paid",
            UNIQ_KEY=f"{broker:016X}{number:016X}",
            colour="blue",
        )
        await give_up(client, sent, group)
        ids.append(sent)
    return ids

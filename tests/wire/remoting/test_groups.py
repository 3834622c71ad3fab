from onelog.wire.remoting.groups import (
    GroupList,
    SimpleSubscription,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)


def test_a_group_is_written_as_rocketmq_writes_it() -> None:
    assert SubscriptionGroupConfig(group_name="g").encode() == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_tables_and_lists_of_groups_survive_the_round_trip() -> None:
    group = SubscriptionGroupConfig(
        group_name="g", subscription_data_set=[SimpleSubscription(topic="t")]
    )
    table = SubscriptionGroupTable(subscription_group_table={"g": group})
    assert SubscriptionGroupTable.decode(table.encode()) == table
    many = SubscriptionGroupList(group_config_list=[group])
    assert SubscriptionGroupList.decode(many.encode()) == many
    assert GroupList(group_list=["g"]).encode() == b'{"groupList":["g"]}'

package onelog.store;

import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What RocketMQ 4 calls differently from 5. */
final class Dialect {
    private Dialect() {
    }

    static String version() {
        return "4.9.8";
    }

    static void configure(MessageStoreConfig config, Options options) {
        if (options.isTrue("record-crc")) {
            throw new IllegalArgumentException("RocketMQ 4 has no checksum over whole records");
        }
    }

    static DefaultMessageStore create(MessageStoreConfig config) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        BrokerStatsManager statistics = new BrokerStatsManager("e2e", false);
        return new DefaultMessageStore(
            config, statistics, (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, broker);
    }

    static PutMessageResult put(DefaultMessageStore store, Draft draft) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(draft.topic);
        message.setQueueId(draft.queueId);
        message.setBody(draft.body);
        message.setFlag(draft.flag);
        message.setSysFlag(draft.sysFlag);
        message.setBornTimestamp(draft.bornTimestamp);
        message.setBornHost(draft.bornHost);
        message.setStoreHost(draft.storeHost);
        message.setReconsumeTimes(draft.reconsumeTimes);
        message.setPreparedTransactionOffset(draft.preparedTransactionOffset);
        MessageAccessor.setProperties(message, draft.properties);
        message.setPropertiesString(MessageDecoder.messageProperties2String(draft.properties));
        return store.putMessage(message);
    }
}

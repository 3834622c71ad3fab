package org.apache.rocketmq.test.base;

import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.mockito.Mockito;
import org.mockito.stubbing.Answer;

/**
 * Stands in front of RocketMQ's class of the same name: instead of starting brokers, it hands out
 * stand-ins for brokers that run elsewhere. What tests ask a broker's inside, these ask over the
 * network; what tests set there, becomes a changed setting of the broker.
 */
public class IntegrationTestBase {
    private static final long WAIT_MS = 5_000;
    private static final AtomicInteger STARTED = new AtomicInteger();
    private static final String[] BROKERS = System.getProperty("onelog.brokers").split(",");
    private static final int NAMESERVER_PORT = Integer.getInteger("onelog.nameserver");
    private static DefaultMQAdminExt admin;

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig config = new NettyServerConfig();
        config.setListenPort(NAMESERVER_PORT);
        NamesrvController found = Mockito.mock(NamesrvController.class);
        Mockito.when(found.getNettyServerConfig()).thenReturn(config);
        // What is set here is RocketMQ's way to delete routes; ours has no such choice.
        Mockito.when(found.getNamesrvConfig()).thenReturn(new NamesrvConfig());
        return found;
    }

    /** A broker that is started once more, with settings that it was told as they were set. */
    public static BrokerController createAndStartBroker(MessageStoreConfig storeConfig, BrokerConfig config) {
        for (int index = 0; index < BROKERS.length; index++) {
            if (BROKERS[index].startsWith(config.getBrokerName() + "@")) {
                return broker(index, "127.0.0.1:" + NAMESERVER_PORT);
            }
        }
        throw new IllegalArgumentException(config.getBrokerName());
    }

    public static BrokerController createAndStartBroker(String nameserver) {
        return broker(STARTED.getAndIncrement(), nameserver);
    }

    private static BrokerController broker(int index, String nameserver) {
        String[] place = BROKERS[index].split("@");
        String address = place[1];
        try {
            if (admin == null) {
                admin = new DefaultMQAdminExt(WAIT_MS);
                admin.setNamesrvAddr(nameserver);
                admin.setInstanceName("originals");
                admin.start();
            }
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
        BrokerConfig config = watched(BrokerConfig.class, address);
        config.setBrokerName(place[0]);
        config.setBrokerClusterName("DefaultCluster");
        config.setListenPort(Integer.parseInt(address.split(":")[1]));
        MessageStoreConfig storeConfig = watched(MessageStoreConfig.class, address);
        BrokerController found = Mockito.mock(BrokerController.class, Mockito.RETURNS_DEEP_STUBS);
        DefaultMessageStore store = store(address);
        SubscriptionGroupManager groups = groups(address);
        ConsumerOffsetManager offsets = offsets(address);
        TopicConfigManager topics = topics(address);
        Mockito.when(found.getBrokerAddr()).thenReturn(address);
        Mockito.when(found.getBrokerConfig()).thenReturn(config);
        Mockito.when(found.getMessageStoreConfig()).thenReturn(storeConfig);
        Mockito.when(found.getMessageStore()).thenReturn(store);
        Mockito.when(found.getTopicConfigManager()).thenReturn(topics);
        Mockito.when(found.getSubscriptionGroupManager()).thenReturn(groups);
        Mockito.when(found.getConsumerOffsetManager()).thenReturn(offsets);
        // Ordered messages that are out keep others back. Tests ask when everything was handed out.
        Answer<Boolean> block = call -> {
            String topic = call.getArgument(1);
            int queue = call.getArgument(3);
            return offsets.queryOffset(call.getArgument(2), topic, queue) < store.getMaxOffsetInQueue(topic, queue);
        };
        Mockito.when(found.getConsumerOrderInfoManager().checkBlock(
            Mockito.any(), Mockito.anyString(), Mockito.anyString(), Mockito.anyInt(), Mockito.anyLong())).thenAnswer(block);
        return found;
    }

    private static MQClientAPIImpl api() {
        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    /** A config, of which what is set once the broker is known is set there, too. */
    private static <T> T watched(Class<T> kind, String address) {
        Answer<Object> answer = call -> {
            Object done = call.callRealMethod();
            String name = call.getMethod().getName();
            if (name.startsWith("set") && call.getArguments().length == 1 && !SET_BY_US.contains(name)) {
                Properties changes = new Properties();
                changes.put(Character.toLowerCase(name.charAt(3)) + name.substring(4), String.valueOf(call.getArgument(0, Object.class)));
                admin.updateBrokerConfig(address, changes);
            }
            return done;
        };
        return Mockito.mock(kind, Mockito.withSettings().useConstructor().defaultAnswer(answer));
    }

    private static final Set<String> SET_BY_US =
        Set.of("setBrokerName", "setBrokerClusterName", "setListenPort");

    private static DefaultMessageStore store(String address) {
        DefaultMessageStore found = Mockito.mock(DefaultMessageStore.class);
        Answer<Long> min = call -> api().getMinOffset(address, queue(call.getArgument(0), call.getArgument(1)), WAIT_MS);
        Answer<Long> max = call -> api().getMaxOffset(address, queue(call.getArgument(0), call.getArgument(1)), WAIT_MS);
        try {
            Mockito.when(found.getMinOffsetInQueue(Mockito.anyString(), Mockito.anyInt())).thenAnswer(min);
            Mockito.when(found.getMaxOffsetInQueue(Mockito.anyString(), Mockito.anyInt())).thenAnswer(max);
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
        return found;
    }

    private static MessageQueue queue(String topic, int id) {
        return new MessageQueue(topic, null, id);
    }

    private static TopicConfigManager topics(String address) {
        TopicConfigManager found = Mockito.mock(TopicConfigManager.class);
        Answer<ConcurrentMap<String, TopicConfig>> table = call ->
            new ConcurrentHashMap<>(admin.getAllTopicConfig(address, WAIT_MS).getTopicConfigTable());
        Mockito.when(found.getTopicConfigTable()).thenAnswer(table);
        Answer<Object> update = call -> {
            admin.createAndUpdateTopicConfig(address, call.getArgument(0));
            return null;
        };
        Mockito.doAnswer(update).when(found).updateTopicConfig(Mockito.any(TopicConfig.class));
        return found;
    }

    private static SubscriptionGroupManager groups(String address) {
        SubscriptionGroupManager found = Mockito.mock(SubscriptionGroupManager.class);
        Answer<Object> update = call -> {
            admin.createAndUpdateSubscriptionGroupConfig(address, call.getArgument(0));
            return null;
        };
        Mockito.doAnswer(update).when(found).updateSubscriptionGroupConfig(Mockito.any());
        Answer<SubscriptionGroupConfig> find = call -> {
            SubscriptionGroupConfig config = new SubscriptionGroupConfig();
            config.setGroupName(call.getArgument(0));
            return config;
        };
        Mockito.when(found.findSubscriptionGroupConfig(Mockito.anyString())).thenAnswer(find);
        return found;
    }

    private static ConsumerOffsetManager offsets(String address) {
        ConsumerOffsetManager found = Mockito.mock(ConsumerOffsetManager.class);
        Answer<Long> query = call -> {
            QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
            header.setConsumerGroup(call.getArgument(0));
            header.setTopic(call.getArgument(1));
            header.setQueueId(call.getArgument(2));
            try {
                return api().queryConsumerOffset(address, header, WAIT_MS);
            } catch (org.apache.rocketmq.client.exception.OffsetNotFoundException e) {
                return -1L;
            }
        };
        Answer<Long> pulled = call -> {
            String group = call.getArgument(0);
            String topic = call.getArgument(1);
            var stats = api().getConsumeStats(address, group, topic, WAIT_MS);
            for (var each : stats.getOffsetTable().entrySet()) {
                if (each.getKey().getQueueId() == (int) call.getArgument(2)) {
                    return each.getValue().getPullOffset();
                }
            }
            return -1L;
        };
        Mockito.when(found.queryOffset(Mockito.anyString(), Mockito.anyString(), Mockito.anyInt())).thenAnswer(query);
        Mockito.when(found.queryPullOffset(Mockito.anyString(), Mockito.anyString(), Mockito.anyInt())).thenAnswer(pulled);
        return found;
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, int queues, CQType kind) {
        return initTopic(topic, nameserver, cluster, queues, kind, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, CQType kind) {
        return initTopic(topic, nameserver, cluster, 8, kind, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, TopicMessageType type) {
        return initTopic(topic, nameserver, cluster, 8, CQType.SimpleCQ, type);
    }

    public static boolean initTopic(
        String topic, String nameserver, String cluster, int queues, CQType kind, TopicMessageType type) {
        Map<String, String> attributes = new HashMap<>();
        if (kind != CQType.SimpleCQ) {
            attributes.put("+queue.type", kind.toString());
        }
        if (type != TopicMessageType.NORMAL) {
            attributes.put("+message.type", type.toString());
        }
        return MQAdminTestUtils.createTopic(nameserver, cluster, topic, queues, attributes, 30);
    }

    public static void initMQAdmin(String nameserver) throws Exception {
        MQAdminTestUtils.startAdmin(nameserver);
    }
}

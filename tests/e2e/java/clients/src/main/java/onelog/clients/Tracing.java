package onelog.clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Producers and consumers that trace what they do (enableMsgTrace). */
final class Tracing {
    private static final int DELAY_LEVEL_OF_A_SECOND = 1;

    private Tracing() {
    }

    /** Traced messages, of which the first fails once; the last one is sent in a transaction. */
    static void run(Options options, Report report) throws Exception {
        int messages = options.number("messages", 4);
        String topic = options.text("topic");
        List<Map<String, Object>> sent = new ArrayList<>();
        Map<Long, AtomicInteger> deliveries = new ConcurrentHashMap<>();
        String nameServers = options.text("nameservers");
        DefaultMQPushConsumer consumer =
            named(new DefaultMQPushConsumer(topic + "-group", true, null), nameServers, "consumer");
        DefaultMQProducer producer =
            named(new DefaultMQProducer(topic + "-producer", true, null), nameServers, "producer");
        TransactionMQProducer transactions = named(
            new TransactionMQProducer(null, topic + "-transactions", null, true, null), nameServers, "transactions");
        try (Clients clients = new Clients(options)) {
            clients.createTopic(clients.producer(topic + "-plain"), topic, 2);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            // The retry topic comes into being with the first heartbeat; find its route soon.
            Clients.beatOften(consumer);
            consumer.setPollNameServerInterval(1_000);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(failFirst(deliveries));
            consumer.start();
            producer.start();
            transactions.setTransactionListener(new Committing());
            transactions.start();
            for (long number = 0; number + 1 < messages; number++) {
                sent.add(facts(producer.send(message(topic, number))));
            }
            sent.add(facts(transactions.sendMessageInTransaction(message(topic, messages - 1), null)));
            Clients.waitFor(60_000, () -> deliveries.size() == messages && deliveries.get(0L).get() == 2);
            // Clients collect traces for up to 5 s, and what is collected at shutdown may be lost.
            Thread.sleep(6_500);
            producer.shutdown();
            transactions.shutdown();
            consumer.shutdown();
        }
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("sent", sent);
        facts.put("deliveries", deliveries.values().stream().mapToInt(AtomicInteger::get).sum());
        report.done(facts);
    }

    /** Each tracing client needs an instance, and with it a client id, of its own. */
    private static <T extends ClientConfig> T named(T client, String nameServers, String name) {
        client.setNamesrvAddr(nameServers);
        client.setInstanceName("tracing-" + name);
        return client;
    }

    private static MessageListenerConcurrently failFirst(Map<Long, AtomicInteger> deliveries) {
        return (batch, context) -> {
            long number = Payload.number(batch.get(0).getBody());
            int count = deliveries.computeIfAbsent(number, any -> new AtomicInteger()).incrementAndGet();
            context.setDelayLevelWhenNextConsume(DELAY_LEVEL_OF_A_SECOND);
            return number == 0 && count == 1 ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private static Message message(String topic, long number) {
        return new Message(topic, "paid", "key-" + topic + "-" + number, Payload.body(number));
    }

    private static Map<String, Object> facts(SendResult result) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("unique_key", result.getMsgId());
        facts.put("offset_id", result.getOffsetMsgId());
        return facts;
    }

    /** Commits at once. */
    private static final class Committing implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}

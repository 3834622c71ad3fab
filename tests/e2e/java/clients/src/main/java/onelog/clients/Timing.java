package onelog.clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages that wait: for a delay level, for a while, or for a point in time; some are recalled (5.x clients only).
 *
 * <p>What 4.9.8 does not have is called by name or set as a property, because one source serves both client lines.
 */
final class Timing {
    private static final int WAYS = 4;

    private Timing() {
    }

    static void run(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        int messages = options.number("messages", 24);
        int recallEvery = options.number("recall-every", 0);
        List<Map<String, Object>> sent = new ArrayList<>();
        List<Map<String, Object>> received = new CopyOnWriteArrayList<>();
        int expected = messages;
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 2);
            consume(clients, topic, received);
            for (int number = 0; number < messages; number++) {
                boolean recalled = recallEvery > 0 && number % recallEvery == 1;
                sent.add(send(producer, topic, number, recalled));
                expected -= recalled ? 1 : 0;
            }
            int wanted = expected;
            Clients.waitFor(options.number("wait-ms", 20_000), () -> received.size() >= wanted);
            // Whatever should not come has this long to come.
            Thread.sleep(options.number("linger-ms", 2_000));
        }
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("sent", sent);
        facts.put("received", received);
        report.done(facts);
    }

    /** One hour ahead, so that there is something to look at. */
    static void far(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        List<Map<String, Object>> sent = new ArrayList<>();
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 2);
            for (int number = 0; number < options.number("messages", 4); number++) {
                long dueMs = System.currentTimeMillis() + 3_600_000 + 10_000L * number;
                Message message = new Message(topic, "far", "key-" + number, Payload.body(number));
                MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", Long.toString(dueMs));
                sent.add(facts(number, dueMs, producer.send(message)));
            }
            Message level = new Message(topic, "far", "key-level", Payload.body(99));
            level.setDelayTimeLevel(18);
            sent.add(facts(99, System.currentTimeMillis() + 7_200_000, producer.send(level)));
        }
        report.done(Map.of("sent", sent));
    }

    private static void consume(Clients clients, String topic, List<Map<String, Object>> received) throws Exception {
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", "one");
        Clients.beatOften(consumer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                Map<String, Object> facts = new LinkedHashMap<>();
                facts.put("number", Payload.number(message.getBody()));
                facts.put("stored_ms", message.getStoreTimestamp());
                facts.put("tags", message.getTags());
                facts.put("properties", new ArrayList<>(message.getProperties().keySet()));
                received.add(facts);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static Map<String, Object> send(DefaultMQProducer producer, String topic, int number, boolean recalled)
        throws Exception {
        Message message = new Message(topic, "timed", Payload.body(number));
        long delayMs = recalled ? 4_000 : 600 + 150L * (number % 9);
        long nowMs = System.currentTimeMillis();
        // A recall takes a time: levels have none.
        int way = recalled ? 1 : number % WAYS;
        if (way == 0) {
            message.setDelayTimeLevel(1);
            delayMs = 1_000;
        } else if (way == 1) {
            MessageAccessor.putProperty(message, "TIMER_DELAY_MS", Long.toString(delayMs));
        } else if (way == 2) {
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", Long.toString(nowMs + delayMs));
        } else {
            MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", "2");
            delayMs = 2_000;
        }
        SendResult result = producer.send(message);
        Map<String, Object> facts = facts(number, nowMs + delayMs, result);
        facts.put("recalled", recalled ? recall(producer, topic, result) : "");
        return facts;
    }

    /** The id of the message that was taken back. */
    private static String recall(DefaultMQProducer producer, String topic, SendResult result)
        throws ReflectiveOperationException {
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
        return (String) DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(producer, topic, handle);
    }

    private static Map<String, Object> facts(int number, long dueMs, SendResult result) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("number", number);
        facts.put("due_ms", dueMs);
        facts.put("unique_key", result.getMsgId());
        facts.put("offset_id", result.getOffsetMsgId());
        return facts;
    }
}

package onelog.clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers that fail: some times and then succeed, or until the broker gives their messages up. */
final class Retries {
    private final int failures;
    private final Map<Long, List<Integer>> tries = new ConcurrentSkipListMap<>();
    private final Map<Long, List<Long>> times = new ConcurrentSkipListMap<>();
    private final ConcurrentSkipListSet<Long> consumed = new ConcurrentSkipListSet<>();
    private final ConcurrentSkipListSet<String> topics = new ConcurrentSkipListSet<>();

    private Retries(int failures) {
        this.failures = failures;
    }

    /** Whether this delivery succeeds: the one after so many failures, or any of a message that was sent anew. */
    private boolean consume(MessageExt message, boolean renewed) {
        long number = Payload.number(message.getBody());
        topics.add(message.getTopic());
        List<Integer> seen = tries.computeIfAbsent(number, any -> new ArrayList<>());
        synchronized (seen) {
            times.computeIfAbsent(number, any -> new ArrayList<>()).add(System.currentTimeMillis());
            seen.add(message.getReconsumeTimes());
            if (!renewed && seen.size() <= failures) {
                return false;
            }
        }
        consumed.add(number);
        return true;
    }

    private int deliveries() {
        return tries.values().stream().mapToInt(seen -> {
            synchronized (seen) {
                return seen.size();
            }
        }).sum();
    }

    /** The shortest and the longest wait before each retry, over all messages. */
    private List<List<Long>> waits() {
        List<List<Long>> found = new ArrayList<>();
        for (List<Long> moments : times.values()) {
            for (int retry = 1; retry < moments.size(); retry++) {
                long wait = moments.get(retry) - moments.get(retry - 1);
                if (found.size() < retry) {
                    found.add(new ArrayList<>(List.of(wait, wait)));
                }
                List<Long> range = found.get(retry - 1);
                range.set(0, Math.min(range.get(0), wait));
                range.set(1, Math.max(range.get(1), wait));
            }
        }
        return found;
    }

    /** Messages whose consumer fails; with "again", also what comes back after it was resent by somebody else. */
    static void run(Options options, Report report) throws Exception {
        int messages = options.number("messages", 5);
        int most = options.number("max", -1);
        int failures = options.number("failures", 2);
        int allowed = most < 0 ? 16 : most;
        boolean dies = failures > allowed;
        String topic = options.text("topic");
        String group = topic + "-group";
        Retries retries = new Retries(failures);
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 2);
            DefaultMQPushConsumer consumer = clients.pushConsumer(group, "a");
            // The retry topic comes into being with the first heartbeat; find its route soon.
            Clients.beatOften(consumer);
            consumer.setPollNameServerInterval(1_000);
            if (most >= 0) {
                consumer.setMaxReconsumeTimes(most);
            }
            consumer.subscribe(topic, "*");
            if (options.number("orderly", 0) == 1) {
                consumer.setSuspendCurrentQueueTimeMillis(100);
                consumer.registerMessageListener(retries.orderly());
            } else {
                consumer.registerMessageListener(retries.concurrently());
            }
            consumer.start();
            for (long number = 0; number < messages; number++) {
                Message message = new Message(topic, "paid", "key-" + number, Payload.body(number));
                message.putUserProperty("colour", "blue");
                producer.send(message);
            }
            int expected = messages * Math.min(failures + 1, allowed + 1);
            Clients.waitFor(90_000, () -> retries.deliveries() >= expected);
            Map<String, Object> facts = retries.facts();
            facts.put("dead", dies ? dead(clients, group, messages) : List.of());
            if (options.number("again", 0) == 1) {
                report.line("dead", facts);
                Clients.waitFor(60_000, () -> retries.consumed.size() == messages);
                facts = retries.facts();
            }
            // Whatever comes now comes too often.
            Thread.sleep(1_500);
            facts.put("deliveries", retries.deliveries());
            report.done(facts);
        }
    }

    private MessageListenerConcurrently concurrently() {
        return (batch, context) -> {
            for (MessageExt message : batch) {
                if (!consume(message, isResent(message))) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private MessageListenerOrderly orderly() {
        return (batch, context) -> {
            for (MessageExt message : batch) {
                if (!consume(message, isResent(message))) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        };
    }

    private static boolean isResent(MessageExt message) {
        return message.getProperty("ONELOG_RESENT_FROM") != null;
    }

    private Map<String, Object> facts() {
        Map<String, Object> facts = new LinkedHashMap<>();
        Map<String, Object> seen = new TreeMap<>();
        tries.forEach((number, counts) -> seen.put(String.valueOf(number), counts));
        facts.put("tries", seen);
        facts.put("consumed", consumed.size());
        facts.put("topics", topics);
        facts.put("waits", waits());
        return facts;
    }

    /** The dead letters of a group, which get a route a moment after the first of them. */
    private static List<Map<String, Object>> dead(Clients clients, String group, int expected) throws Exception {
        String topic = "%DLQ%" + group;
        Map<Integer, List<MessageExt>> queues = Map.of();
        for (int attempt = 0; attempt < 20 && Clients.count(queues) < expected; attempt++) {
            try {
                queues = clients.readAll(topic, group + "-readers", expected);
            } catch (MQClientException noRouteYet) {
                Thread.sleep(500);
            }
        }
        List<Map<String, Object>> letters = new ArrayList<>();
        queues.values().forEach(queue -> queue.forEach(message -> {
            Map<String, Object> letter = new TreeMap<>();
            letter.put("number", Payload.number(message.getBody()));
            letter.put("times", message.getReconsumeTimes());
            letter.put("topic", message.getProperty("RETRY_TOPIC"));
            letter.put("tags", message.getTags());
            letter.put("keys", message.getKeys());
            letter.put("colour", message.getProperty("colour"));
            letters.add(letter);
        }));
        return letters;
    }
}

package onelog.clients;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The ways to send. Each sends numbered bodies, reads the whole topic back and reports what differs. */
final class Sending {
    private static final int LARGE_BODY_BYTES = 64 * 1024;

    private Sending() {
    }

    static void sync(Options options, Report report) throws Exception {
        int messages = options.number("messages", 200);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            Map<Long, SendResult> results = new HashMap<>();
            for (long number = 0; number < messages; number++) {
                results.put(number, producer.send(dressed(topic, number)));
            }
            Map<String, Object> facts = new LinkedHashMap<>();
            Map<Integer, List<MessageExt>> stored = clients.readAll(topic, topic + "-reader", messages);
            facts.put("sent_ok", results.values().stream().filter(Sending::isOk).count());
            facts.put("message_ids", results.values().stream().map(SendResult::getMsgId).distinct().count());
            facts.put("queues_used", stored.values().stream().filter(queue -> !queue.isEmpty()).count());
            facts.put("stored", Clients.count(stored));
            facts.put("wrong", differences(stored, results));
            SendResult last = results.get((long) messages - 1);
            MessageExt viewed = producer.viewMessage(topic, last.getOffsetMsgId());
            facts.put("viewed_by_offset_id", Payload.number(viewed.getBody()));
            facts.put("last", messages - 1);
            report.done(facts);
        }
    }

    /** Every field that a user can set, and every tenth body large enough to be compressed by the client. */
    private static Message dressed(String topic, long number) {
        int size = number % 10 == 9 ? LARGE_BODY_BYTES : 24 + (int) (number % 257);
        Message message = new Message(topic, "tag" + number % 3, "key" + number, Payload.body(number, size));
        message.setFlag((int) number);
        message.putUserProperty("colour", number % 2 == 0 ? "grün" : "blue with spaces: and colons");
        message.putUserProperty("number", Long.toString(number));
        return message;
    }

    private static boolean isOk(SendResult result) {
        return result.getSendStatus() == SendStatus.SEND_OK;
    }

    /** Compares what was read back with what was sent; names the first few fields that differ. */
    private static List<String> differences(Map<Integer, List<MessageExt>> stored, Map<Long, SendResult> results) {
        List<String> wrong = new ArrayList<>();
        Set<Long> seen = new HashSet<>();
        stored.forEach((queueId, messages) -> {
            for (int i = 0; i < messages.size(); i++) {
                MessageExt message = messages.get(i);
                long number = Payload.number(message.getBody());
                SendResult result = results.get(number);
                if (result == null || !seen.add(number)) {
                    wrong.add("body of queue " + queueId + " offset " + i);
                    continue;
                }
                Message expected = dressed(message.getTopic(), number);
                check(wrong, number, "queue offset", result.getQueueOffset(), (long) i);
                check(wrong, number, "queue offset of message", message.getQueueOffset(), (long) i);
                check(wrong, number, "queue", result.getMessageQueue().getQueueId(), queueId);
                check(wrong, number, "unique id", result.getMsgId(), message.getMsgId());
                check(wrong, number, "tags", expected.getTags(), message.getTags());
                check(wrong, number, "keys", expected.getKeys(), message.getKeys());
                check(wrong, number, "flag", expected.getFlag(), message.getFlag());
                check(wrong, number, "body size", expected.getBody().length, message.getBody().length);
                for (String name : List.of("colour", "number")) {
                    check(wrong, number, name, expected.getUserProperty(name), message.getUserProperty(name));
                }
                check(wrong, number, "times", true, message.getBornTimestamp() <= message.getStoreTimestamp() + 1000);
            }
        });
        return wrong.size() > 10 ? wrong.subList(0, 10) : wrong;
    }

    private static void check(List<String> wrong, long number, String what, Object expected, Object seen) {
        if (!expected.equals(seen)) {
            wrong.add("message " + number + ": " + what + " is " + seen + ", expected " + expected);
        }
    }

    static void async(Options options, Report report) throws Exception {
        int messages = options.number("messages", 2_000);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            // Bounded: an unbounded asynchronous sender floods client and broker until every send fails.
            Semaphore room = new Semaphore(256);
            CountDownLatch answers = new CountDownLatch(messages);
            Set<String> offsets = ConcurrentHashMap.newKeySet();
            AtomicInteger failed = new AtomicInteger();
            for (long number = 0; number < messages; number++) {
                room.acquire();
                producer.send(new Message(topic, Payload.body(number)), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        offsets.add(result.getMessageQueue().getQueueId() + "/" + result.getQueueOffset());
                        answered();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed.incrementAndGet();
                        answered();
                    }

                    private void answered() {
                        room.release();
                        answers.countDown();
                    }
                });
            }
            boolean all = answers.await(60, TimeUnit.SECONDS);
            Map<Integer, List<MessageExt>> stored = clients.readAll(topic, topic + "-reader", messages);
            report.done(Map.of("all_answered", all, "failed", failed.get(), "distinct_offsets", offsets.size(),
                "stored", Clients.count(stored), "distinct_numbers", numbers(stored).size()));
        }
    }

    static void oneway(Options options, Report report) throws Exception {
        int messages = options.number("messages", 1_000);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            for (long number = 0; number < messages; number++) {
                producer.sendOneway(new Message(topic, Payload.body(number)));
            }
            Map<Integer, List<MessageExt>> stored = clients.readAll(topic, topic + "-reader", messages);
            report.done(Map.of("stored", Clients.count(stored), "distinct_numbers", numbers(stored).size()));
        }
    }

    private static Set<Long> numbers(Map<Integer, List<MessageExt>> stored) {
        Set<Long> numbers = new HashSet<>();
        stored.values().forEach(queue -> queue.forEach(message -> numbers.add(Payload.number(message.getBody()))));
        numbers.remove(-1L);
        return numbers;
    }

    static void batch(Options options, Report report) throws Exception {
        int messages = options.number("messages", 100_000);
        int batchSize = options.number("batch", 100);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            List<MessageQueue> queues = clients.createTopic(producer, topic, 4);
            Map<Integer, List<Long>> expected = new TreeMap<>();
            int wrongResults = 0;
            long number = 0;
            for (int sent = 0; number < messages; sent++) {
                MessageQueue queue = queues.get(sent % queues.size());
                List<Long> inQueue = expected.computeIfAbsent(queue.getQueueId(), id -> new ArrayList<>());
                long offset = inQueue.size();
                List<Message> batch = new ArrayList<>();
                for (int i = 0; i < batchSize && number < messages; i++, number++) {
                    batch.add(new Message(topic, "t" + number % 5, "k" + number, Payload.body(number)));
                    inQueue.add(number);
                }
                SendResult result = producer.send(batch, queue);
                boolean right = isOk(result) && result.getMsgId().split(",").length == batch.size()
                    && result.getQueueOffset() == offset;
                wrongResults += right ? 0 : 1;
            }
            Map<Integer, List<MessageExt>> stored = clients.readAll(topic, topic + "-reader", messages);
            report.done(Map.of("wrong_results", wrongResults, "stored", Clients.count(stored),
                "wrong", wrongInQueues(stored, expected)));
        }
    }

    /** How many positions hold something other than the expected message: content and order in one number. */
    private static int wrongInQueues(Map<Integer, List<MessageExt>> stored, Map<Integer, List<Long>> expected) {
        int wrong = 0;
        for (Map.Entry<Integer, List<Long>> entry : expected.entrySet()) {
            List<MessageExt> queue = stored.getOrDefault(entry.getKey(), List.of());
            wrong += Math.abs(queue.size() - entry.getValue().size());
            for (int i = 0; i < Math.min(queue.size(), entry.getValue().size()); i++) {
                MessageExt message = queue.get(i);
                long number = entry.getValue().get(i);
                boolean right = Payload.number(message.getBody()) == number && message.getQueueOffset() == i
                    && ("t" + number % 5).equals(message.getTags()) && ("k" + number).equals(message.getKeys());
                wrong += right ? 0 : 1;
            }
        }
        return wrong;
    }

    static void selector(Options options, Report report) throws Exception {
        int messages = options.number("messages", 1_000);
        int orders = options.number("orders", 20);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 8);
            int misplaced = 0;
            for (long number = 0; number < messages; number++) {
                int order = (int) (number % orders);
                Message message = new Message(topic, "", "order" + order, Payload.body(number));
                SendResult result = producer.send(message, (queues, sent, key) ->
                    queues.stream().filter(queue -> queue.getQueueId() == (Integer) key % queues.size())
                        .findFirst().orElseThrow(), order);
                misplaced += result.getMessageQueue().getQueueId() == order % 8 ? 0 : 1;
            }
            Map<String, Long> lastOfOrder = new HashMap<>();
            int outOfOrder = 0;
            Map<Integer, List<MessageExt>> stored = clients.readAll(topic, topic + "-reader", messages);
            for (Map.Entry<Integer, List<MessageExt>> queue : stored.entrySet()) {
                for (MessageExt message : queue.getValue()) {
                    long number = Payload.number(message.getBody());
                    Long before = lastOfOrder.put(message.getKeys(), number);
                    outOfOrder += before == null || before + orders == number ? 0 : 1;
                    misplaced += queue.getKey() == number % orders % 8 ? 0 : 1;
                }
            }
            report.done(Map.of("stored", Clients.count(stored), "misplaced", misplaced, "out_of_order", outOfOrder,
                "orders", lastOfOrder.size()));
        }
    }
}

package onelog.clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull: queues by hand, queues by rebalance, and moving about in a queue. */
final class LitePull {
    private static final long POLL_MS = 200;
    private static final long AUTO_COMMIT_MS = 1_000;

    private LitePull() {
    }

    /** By hand and with commits by hand: a second consumer starts at what the first one committed. */
    static void assign(Options options, Report report) throws Exception {
        int messages = options.number("messages", 200);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            Delivery.send(producer, topic, 0, messages);
            DefaultLitePullConsumer first = assigned(clients, topic, "first");
            Arrivals byFirst = poll(first, messages, 30_000);
            first.commitSync();
            long committed = 0;
            for (MessageQueue queue : first.fetchMessageQueues(topic)) {
                committed += first.committed(queue);
            }
            first.shutdown();
            Delivery.send(producer, topic, messages, messages + 40);
            Arrivals bySecond = poll(assigned(clients, topic, "second"), 40, 30_000);
            report.done(Map.of("first", byFirst.distinct(), "first_again", byFirst.duplicates(),
                "committed", committed, "second_new", bySecond.between(messages, messages + 40),
                "second_old", bySecond.between(0, messages)));
        }
    }

    private static DefaultLitePullConsumer assigned(Clients clients, String topic, String member) throws Exception {
        DefaultLitePullConsumer consumer = clients.litePullConsumer(topic + "-group", member);
        consumer.setAutoCommit(false);
        consumer.start();
        consumer.assign(consumer.fetchMessageQueues(topic));
        return consumer;
    }

    /** Polls until so many different messages came, then a little longer for those that should not come. */
    private static Arrivals poll(DefaultLitePullConsumer consumer, int wanted, long timeoutMs) {
        Arrivals seen = new Arrivals();
        long deadline = System.currentTimeMillis() + timeoutMs;
        while (seen.distinct() < wanted && System.currentTimeMillis() < deadline) {
            consumer.poll(POLL_MS).forEach(seen::add);
        }
        for (int i = 0; i < 3; i++) {
            consumer.poll(POLL_MS).forEach(seen::add);
        }
        return seen;
    }

    /** By rebalance and with automatic commits: two members share, a third goes on after they have left. */
    static void subscribe(Options options, Report report) throws Exception {
        int messages = options.number("messages", 400);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            DefaultLitePullConsumer one = subscribed(clients, topic, "one");
            DefaultLitePullConsumer two = subscribed(clients, topic, "two");
            boolean shared = Clients.waitFor(30_000, () -> queues(one) == 2 && queues(two) == 2);
            Delivery.send(producer, topic, 0, messages);
            Arrivals byBoth = new Arrivals();
            Arrivals byTwo = new Arrivals();
            long deadline = System.currentTimeMillis() + 30_000;
            while (byBoth.distinct() < messages && System.currentTimeMillis() < deadline) {
                one.poll(POLL_MS).forEach(byBoth::add);
                List<MessageExt> polled = two.poll(POLL_MS);
                polled.forEach(byBoth::add);
                polled.forEach(byTwo::add);
            }
            // Offsets are committed by the first poll after the interval.
            Thread.sleep(AUTO_COMMIT_MS + 100);
            for (DefaultLitePullConsumer member : List.of(one, two)) {
                member.poll(POLL_MS).forEach(byBoth::add);
                member.shutdown();
            }
            Delivery.send(producer, topic, messages, messages + 40);
            Arrivals byThird = poll(subscribed(clients, topic, "three"), 40, 30_000);
            report.done(Map.of("shared", shared, "both", byBoth.distinct(), "both_again", byBoth.duplicates(),
                "two", byTwo.distinct(), "third_new", byThird.between(messages, messages + 40),
                "third_old", byThird.between(0, messages)));
        }
    }

    private static DefaultLitePullConsumer subscribed(Clients clients, String topic, String member) throws Exception {
        DefaultLitePullConsumer consumer = clients.litePullConsumer(topic + "-group", member);
        consumer.setAutoCommitIntervalMillis(AUTO_COMMIT_MS);
        consumer.subscribe(topic, "*");
        consumer.start();
        return consumer;
    }

    private static int queues(DefaultLitePullConsumer consumer) {
        try {
            return consumer.assignment().size();
        } catch (Exception notYet) {
            return 0;
        }
    }

    /** One queue: to a place, to the begin, to the end, to a moment. Reports the first offset seen after each move. */
    static void seek(Options options, Report report) throws Exception {
        int messages = options.number("messages", 100);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            MessageQueue queue = clients.createTopic(producer, topic, 1).get(0);
            Delivery.send(producer, topic, 0, messages);
            Thread.sleep(50);
            long moment = System.currentTimeMillis();
            Thread.sleep(50);
            Delivery.send(producer, topic, messages, 2 * messages);
            DefaultLitePullConsumer consumer = clients.litePullConsumer(topic + "-group", "one");
            consumer.start();
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
            consumer.assign(queues);
            MessageQueue mine = queues.get(0);
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("start", firstOffset(consumer));
            consumer.seek(mine, messages / 2);
            facts.put("seek", firstOffset(consumer));
            consumer.seekToBegin(mine);
            facts.put("begin", firstOffset(consumer));
            facts.put("offset_of_moment", consumer.offsetForTimestamp(mine, moment));
            consumer.seek(mine, consumer.offsetForTimestamp(mine, moment));
            facts.put("moment", firstOffset(consumer));
            consumer.seekToEnd(mine);
            facts.put("end", firstOffset(consumer));
            producer.send(new Message(topic, Payload.body(2L * messages)), queue);
            facts.put("after_end", firstOffset(consumer));
            facts.put("refused", refusal(consumer, mine, 10L * messages));
            report.done(facts);
        }
    }

    /** The queue offset of the next message, or -1 when none comes within two seconds. */
    private static long firstOffset(DefaultLitePullConsumer consumer) {
        for (int i = 0; i < 10; i++) {
            List<MessageExt> polled = consumer.poll(POLL_MS);
            if (!polled.isEmpty()) {
                return polled.get(0).getQueueOffset();
            }
        }
        return -1;
    }

    private static boolean refusal(DefaultLitePullConsumer consumer, MessageQueue queue, long offset) {
        try {
            consumer.seek(queue, offset);
            return false;
        } catch (Exception outOfRange) {
            return true;
        }
    }
}

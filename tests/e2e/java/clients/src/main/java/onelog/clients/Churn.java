package onelog.clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A group whose members join and leave while messages flow.
 *
 * <p>Message n goes to queue n % QUEUES, so that n / QUEUES is its place in the queue. Whoever receives it notes who it
 * was and which membership held at that moment: that is what explains a second delivery.
 */
final class Churn {
    private static final int QUEUES = 8;

    /** At which share of the sent messages (in percent) which member joins (+) or leaves (-). */
    private static final Object[][] STEPS = {
        {0, "+a"}, {15, "+b"}, {30, "+c"}, {50, "-a"}, {65, "+d"}, {80, "-b"},
    };

    private final Clients clients;
    private final String topic;
    private final int messages;
    private final int rate;
    private final boolean orderly;
    private final AtomicLong sent = new AtomicLong();
    private final AtomicInteger membership = new AtomicInteger();
    private final AtomicInteger corrupt = new AtomicInteger();
    private final AtomicInteger duplicates = new AtomicInteger();
    private final AtomicInteger unexplained = new AtomicInteger();
    private final Map<Long, String> receipts = new ConcurrentHashMap<>();
    private final Map<String, AtomicInteger> perMember = new ConcurrentHashMap<>();
    private final Map<String, Long> joinedMs = new ConcurrentHashMap<>();
    private final Map<String, Long> firstMessageMs = new ConcurrentHashMap<>();
    private final QueueOrder order = new QueueOrder(QUEUES);

    private Churn(Clients clients, Options options, boolean orderly) {
        this.clients = clients;
        this.orderly = orderly;
        this.topic = options.text("topic");
        this.messages = options.number("messages", 5_000);
        this.rate = options.number("rate", 500);
    }

    static void concurrent(Options options, Report report) throws Exception {
        try (Clients clients = new Clients(options)) {
            new Churn(clients, options, false).run(report);
        }
    }

    static void orderly(Options options, Report report) throws Exception {
        try (Clients clients = new Clients(options)) {
            new Churn(clients, options, true).run(report);
        }
    }

    private void run(Report report) throws Exception {
        DefaultMQProducer producer = clients.producer(topic + "-producer");
        List<MessageQueue> queues = clients.createTopic(producer, topic, QUEUES);
        Thread sender = new Thread(() -> send(producer, queues), "sender");
        Map<String, DefaultMQPushConsumer> members = new TreeMap<>();
        for (Object[] step : STEPS) {
            long due = (long) messages * (Integer) step[0] / 100;
            Clients.waitFor(60_000, () -> sent.get() >= due);
            String member = ((String) step[1]).substring(1);
            membership.incrementAndGet();
            if (((String) step[1]).startsWith("+")) {
                members.put(member, join(member));
            } else {
                members.remove(member).shutdown();
            }
            report.line("step", Map.of("member", step[1], "sent", sent.get()));
            if (sender.getState() == Thread.State.NEW) {
                sender.start();
            }
        }
        sender.join();
        Clients.waitFor(60_000, () -> receipts.size() == sent.get());
        Thread.sleep(1_000);
        report.done(facts());
    }

    private void send(DefaultMQProducer producer, List<MessageQueue> queues) {
        long begin = System.nanoTime();
        for (long number = 0; number < messages; number++) {
            long due = begin + number * 1_000_000_000L / rate;
            LockSupport.parkNanos(due - System.nanoTime());
            try {
                producer.send(new Message(topic, Payload.body(number)), queues.get((int) (number % QUEUES)));
            } catch (Exception failure) {
                throw new IllegalStateException("send of message " + number + " failed", failure);
            }
            sent.incrementAndGet();
        }
    }

    private DefaultMQPushConsumer join(String member) throws Exception {
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", member);
        consumer.subscribe(topic, "*");
        perMember.put(member, new AtomicInteger());
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                batch.forEach(message -> receive(member, message));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                batch.forEach(message -> receive(member, message));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        joinedMs.put(member, System.currentTimeMillis());
        consumer.start();
        return consumer;
    }

    private void receive(String member, MessageExt message) {
        firstMessageMs.putIfAbsent(member, System.currentTimeMillis());
        perMember.get(member).incrementAndGet();
        long number = Payload.number(message.getBody());
        if (number < 0 || number % QUEUES != message.getQueueId() || number / QUEUES != message.getQueueOffset()) {
            corrupt.incrementAndGet();
            return;
        }
        if (orderly) {
            order.enter(message.getQueueId(), message.getQueueOffset());
        }
        String circumstances = member + membership.get();
        String before = receipts.putIfAbsent(number, circumstances);
        if (before != null) {
            duplicates.incrementAndGet();
            unexplained.addAndGet(before.equals(circumstances) ? 1 : 0);
        }
        if (orderly) {
            order.leave(message.getQueueId());
        }
    }

    private Map<String, Object> facts() {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("sent", sent.get());
        facts.put("received", receipts.size());
        facts.put("corrupt", corrupt.get());
        facts.put("duplicates", duplicates.get());
        facts.put("unexplained", unexplained.get());
        facts.put("per_member", perMember);
        Map<String, Long> waits = new TreeMap<>();
        firstMessageMs.forEach((member, at) -> waits.put(member, at - joinedMs.get(member)));
        facts.put("first_message_ms", waits);
        facts.put("overlaps", order.overlaps.get());
        facts.put("gaps", order.gaps.get());
        facts.put("went_back", new ArrayList<>(order.wentBack));
        return facts;
    }
}

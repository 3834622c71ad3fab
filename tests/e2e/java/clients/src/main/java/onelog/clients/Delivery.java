package onelog.clients;

import java.time.LocalDateTime;
import java.time.format.DateTimeFormatter;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Who gets what with push consumers: everybody, from where it stopped, from a moment on. */
final class Delivery {
    private static final DateTimeFormatter SECOND = DateTimeFormatter.ofPattern("yyyyMMddHHmmss");

    private Delivery() {
    }

    /** Three members get everything; one that comes back gets only what is new to it. */
    static void broadcasting(Options options, Report report) throws Exception {
        int messages = options.number("messages", 300);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            Map<String, Arrivals> arrivals = new TreeMap<>();
            DefaultMQPushConsumer last = null;
            for (String member : new String[] {"a", "b", "c"}) {
                last = listen(clients, topic, member, arrivals, true);
            }
            send(producer, topic, 0, messages);
            arrivals.values().forEach(seen -> waitFor(() -> seen.distinct() == messages));
            Map<String, Object> facts = new LinkedHashMap<>();
            arrivals.forEach((member, seen) -> facts.put("received_by_" + member, seen.distinct()));
            facts.put("duplicates", arrivals.values().stream().mapToInt(Arrivals::duplicates).sum());
            last.shutdown();
            send(producer, topic, messages, messages + 50);
            listen(clients, topic, "c", arrivals, true);
            waitFor(() -> arrivals.get("c").between(messages, messages + 50) == 50);
            Thread.sleep(500);
            facts.put("after_return_new", arrivals.get("c").between(messages, messages + 50));
            facts.put("after_return_old", arrivals.get("c").between(0, messages));
            report.done(facts);
        }
    }

    private static DefaultMQPushConsumer listen(Clients clients, String topic, String member,
        Map<String, Arrivals> arrivals, boolean broadcast) throws Exception {
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", member);
        if (broadcast) {
            Clients.broadcast(consumer);
        }
        consumer.subscribe(topic, "*");
        Arrivals seen = new Arrivals();
        arrivals.put(member, seen);
        seen.listenTo(consumer);
        consumer.start();
        return consumer;
    }

    /** A topic that exists on several brokers: how many messages went to each, and how many came back. */
    static void spread(Options options, Report report) throws Exception {
        int messages = options.number("messages", 100);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            Map<String, Arrivals> arrivals = new TreeMap<>();
            listen(clients, topic, "one", arrivals, false);
            Map<String, Integer> sent = new TreeMap<>();
            for (long number = 0; number < messages; number++) {
                SendResult result = producer.send(new Message(topic, Payload.body(number)));
                sent.merge(result.getMessageQueue().getBrokerName(), 1, Integer::sum);
            }
            waitFor(() -> arrivals.get("one").distinct() == messages);
            report.done(Map.of("sent", sent, "received", arrivals.get("one").between(0, messages)));
        }
    }

    /** A member stops in the middle and comes back: it goes on where it stopped. */
    static void resume(Options options, Report report) throws Exception {
        int messages = options.number("messages", 400);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            Map<String, Arrivals> arrivals = new TreeMap<>();
            send(producer, topic, 0, messages / 2);
            DefaultMQPushConsumer first = listen(clients, topic, "first", arrivals, false);
            waitFor(() -> arrivals.get("first").distinct() == messages / 2);
            first.shutdown();
            send(producer, topic, messages / 2, messages);
            listen(clients, topic, "second", arrivals, false);
            waitFor(() -> arrivals.get("second").between(messages / 2, messages) == messages - messages / 2);
            Thread.sleep(500);
            report.done(Map.of("first", arrivals.get("first").distinct(),
                "second_new", arrivals.get("second").between(messages / 2, messages),
                "second_again", arrivals.get("second").between(0, messages / 2)));
        }
    }

    /** Two lots of messages some seconds apart; consumers that ask for what came after the moment in between. */
    static void timestamp(Options options, Report report) throws Exception {
        int messages = options.number("messages", 100);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            send(producer, topic, 0, messages);
            // The client's setting has a resolution of a second.
            Thread.sleep(2_100);
            String moment = LocalDateTime.now().format(SECOND);
            Thread.sleep(1_100);
            send(producer, topic, messages, 2 * messages);
            Map<String, Object> facts = new LinkedHashMap<>();
            for (boolean broadcast : new boolean[] {true, false}) {
                String mode = broadcast ? "broadcasting" : "clustering";
                DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-" + mode, mode);
                if (broadcast) {
                    Clients.broadcast(consumer);
                }
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
                consumer.setConsumeTimestamp(moment);
                consumer.subscribe(topic, "*");
                Arrivals seen = new Arrivals();
                seen.listenTo(consumer);
                consumer.start();
                waitFor(() -> seen.between(messages, 2 * messages) == messages);
                Thread.sleep(1_000);
                facts.put(mode + "_new", seen.between(messages, 2 * messages));
                facts.put(mode + "_old", seen.between(0, messages));
            }
            report.done(facts);
        }
    }

    static void send(DefaultMQProducer producer, String topic, long begin, long end) throws Exception {
        for (long number = begin; number < end; number++) {
            producer.send(new Message(topic, Payload.body(number)));
        }
    }

    private static void waitFor(BooleanSupplier condition) {
        try {
            Clients.waitFor(30_000, condition);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}

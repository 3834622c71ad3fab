package onelog.clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** A little of everything, in seconds: each way to send ten messages, each way to receive them. */
final class Smoke {
    private static final int EACH = 10;
    private static final int ALL = 5 * EACH;

    private Smoke() {
    }

    static void run(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-producer");
            clients.createTopic(producer, topic, 4);
            Map<String, Arrivals> arrivals = new LinkedHashMap<>();
            arrivals.put("concurrent", push(clients, topic, "concurrent"));
            arrivals.put("orderly", push(clients, topic, "orderly"));
            arrivals.put("broadcasting", push(clients, topic, "broadcasting"));
            arrivals.put("tag", push(clients, topic, "tag"));
            arrivals.put("sql", push(clients, topic, "sql"));
            send(producer, topic);
            Map<String, Object> facts = new LinkedHashMap<>();
            arrivals.forEach((name, seen) -> {
                int wanted = name.equals("tag") || name.equals("sql") ? ALL / 2 : ALL;
                waitFor(seen, wanted);
                facts.put(name, seen.distinct());
            });
            facts.put("stored", Clients.count(clients.readAll(topic, topic + "-reader", ALL)));
            facts.put("lite_pull", litePull(clients, topic));
            report.done(facts);
        }
    }

    private static void waitFor(Arrivals seen, int wanted) {
        try {
            Clients.waitFor(10_000, () -> seen.distinct() >= wanted);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static Arrivals push(Clients clients, String topic, String kind) throws Exception {
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-" + kind, "one");
        Clients.beatOften(consumer);
        if (kind.equals("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql("parity = 'odd'"));
        } else {
            consumer.subscribe(topic, kind.equals("tag") ? "even" : "*");
        }
        if (kind.equals("broadcasting")) {
            Clients.broadcast(consumer);
        }
        Arrivals seen = new Arrivals();
        if (kind.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                batch.forEach(seen::add);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            seen.listenTo(consumer);
        }
        consumer.start();
        return seen;
    }

    private static void send(DefaultMQProducer producer, String topic) throws Exception {
        CountDownLatch answers = new CountDownLatch(EACH);
        List<Message> batch = new ArrayList<>();
        for (long i = 0; i < EACH; i++) {
            producer.send(message(topic, i));
            producer.sendOneway(message(topic, EACH + i));
            producer.send(message(topic, 2 * EACH + i), (queues, sent, key) -> queues.get(0), "key");
            producer.send(message(topic, 3 * EACH + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                }
            });
            batch.add(message(topic, 4 * EACH + i));
        }
        producer.send(batch);
        if (!answers.await(10, TimeUnit.SECONDS)) {
            throw new IllegalStateException(answers.getCount() + " asynchronous sends were not acknowledged");
        }
    }

    private static Message message(String topic, long number) {
        String parity = number % 2 == 0 ? "even" : "odd";
        Message message = new Message(topic, parity, "key" + number, Payload.body(number));
        message.putUserProperty("parity", parity);
        return message;
    }

    private static int litePull(Clients clients, String topic) throws Exception {
        DefaultLitePullConsumer consumer = clients.litePullConsumer(topic + "-lite", "one");
        consumer.start();
        consumer.assign(consumer.fetchMessageQueues(topic));
        Arrivals seen = new Arrivals();
        for (int i = 0; i < 50 && seen.distinct() < ALL; i++) {
            consumer.poll(200).forEach(seen::add);
        }
        return seen.distinct();
    }
}

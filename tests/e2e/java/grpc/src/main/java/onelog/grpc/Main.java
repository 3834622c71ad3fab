package onelog.grpc;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Sends and receives messages of every type, and prints what came as JSON lines. */
public final class Main {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int COUNT = 20;
    private static ClientConfiguration settings;

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        settings = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        normal(args[1] + "-normal");
        fifo(args[1] + "-fifo");
        delay(args[1] + "-delay");
        transaction(args[1] + "-transaction");
        System.exit(0);
    }

    private static void tell(String name, List<String> got) {
        String joined = got.isEmpty() ? "" : "\"" + String.join("\", \"", got) + "\"";
        System.out.println("{\"name\": \"" + name + "\", \"got\": [" + joined + "]}");
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView view) {
        ByteBuffer body = view.getBody();
        return StandardCharsets.UTF_8.decode(body).toString();
    }

    private static Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(settings).setTopics(topic).build();
    }

    private static SimpleConsumer consumer(String topic) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(settings)
            .setConsumerGroup(topic + "-group").setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
    }

    private static List<String> take(SimpleConsumer consumer, int count) throws Exception {
        List<String> got = new ArrayList<>();
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (got.size() < count && System.nanoTime() < until) {
            for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                got.add(body(view) + " " + view.getDeliveryAttempt());
                consumer.ack(view);
            }
        }
        return got;
    }

    private static void normal(String topic) throws Exception {
        try (Producer producer = producer(topic)) {
            for (int i = 0; i < COUNT; i++) {
                Message made = message(topic, "n" + i).setTag("t").setKeys("k" + i).addProperty("p", "v").build();
                producer.send(made);
            }
        }
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch enough = new CountDownLatch(COUNT);
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(settings)
            .setConsumerGroup(topic + "-group")
            .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression("t")))
            .setMessageListener(view -> {
                got.add(body(view) + " " + view.getTag().get() + " " + String.join(",", view.getKeys()) + " "
                    + view.getProperties().get("p"));
                enough.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        enough.await(60, TimeUnit.SECONDS);
        consumer.close();
        tell("normal", new ArrayList<>(new TreeSet<>(got)));
    }

    private static void fifo(String topic) throws Exception {
        try (Producer producer = producer(topic)) {
            for (int i = 0; i < COUNT; i++) {
                producer.send(message(topic, "f" + i).setMessageGroup("one").build());
            }
        }
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch enough = new CountDownLatch(COUNT);
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(settings)
            .setConsumerGroup(topic + "-group")
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                got.add(body(view));
                enough.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        enough.await(60, TimeUnit.SECONDS);
        consumer.close();
        tell("fifo", got);
    }

    private static void delay(String topic) throws Exception {
        try (Producer producer = producer(topic); SimpleConsumer consumer = consumer(topic)) {
            long now = System.currentTimeMillis();
            producer.send(message(topic, "late").setDeliveryTimestamp(now + 4000).build());
            SendReceipt recalled = producer.send(message(topic, "never").setDeliveryTimestamp(now + 6000).build());
            producer.recallMessage(topic, recalled.getRecallHandle());
            List<String> got = take(consumer, 1);
            got.add(System.currentTimeMillis() - now >= 3000 ? "in time" : "too early");
            for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                got.add(body(view));
            }
            tell("delay", got);
        }
    }

    private static void transaction(String topic) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(settings).setTopics(topic)
                .setTransactionChecker(view -> TransactionResolution.COMMIT).build();
                SimpleConsumer consumer = consumer(topic)) {
            Transaction kept = producer.beginTransaction();
            producer.send(message(topic, "committed").build(), kept);
            kept.commit();
            Transaction dropped = producer.beginTransaction();
            producer.send(message(topic, "rolled back").build(), dropped);
            dropped.rollback();
            producer.send(message(topic, "asked about").build(), producer.beginTransaction());
            List<String> got = take(consumer, 2);
            Collections.sort(got);
            tell("transaction", got);
        }
    }
}

package onelog.clients;

import java.lang.reflect.Method;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Makes the official clients of one scenario and shuts them down, last made first.
 *
 * <p>Members of a group live in one JVM, so each gets an instance name of its own: that makes their client ids differ.
 */
final class Clients implements AutoCloseable {
    private static final String AUTO_CREATE_TOPIC = "TBW102";

    private final String nameServers;
    private final Deque<Runnable> shutdowns = new ArrayDeque<>();

    Clients(Options options) {
        this.nameServers = options.text("nameservers");
    }

    DefaultMQProducer producer(String group) throws MQClientException {
        DefaultMQProducer producer = unstartedProducer(group);
        producer.start();
        return producer;
    }

    DefaultMQProducer unstartedProducer(String group) {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName("producer-" + group);
        producer.setSendMsgTimeout(10_000);
        shutdowns.push(producer::shutdown);
        return producer;
    }

    /** Not started and not subscribed yet; from the first message unless the caller says otherwise. */
    DefaultMQPushConsumer pushConsumer(String group, String member) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(group + "-" + member);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        shutdowns.push(consumer::shutdown);
        return consumer;
    }

    /**
     * Keeps a scenario with many consumers short.
     *
     * <p>In 5.x the first rebalance changes the version of the subscription and announces it with a heartbeat, unless
     * the heartbeat of the first second happens to be under way: then any broker refuses pulls ("the subscription is
     * not latest") until the next one, 30 seconds later by default.
     */
    static void beatOften(DefaultMQPushConsumer consumer) {
        consumer.setHeartbeatBrokerInterval(2_000);
    }

    /** The enum lives in different packages in 4.x and 5.x; its constants do not differ. */
    static void broadcast(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        Method setter = Arrays.stream(DefaultMQPushConsumer.class.getMethods())
            .filter(method -> method.getName().equals("setMessageModel")).findFirst().orElseThrow();
        Object model = Arrays.stream(setter.getParameterTypes()[0].getEnumConstants())
            .filter(constant -> constant.toString().equals("BROADCASTING")).findFirst().orElseThrow();
        setter.invoke(consumer, model);
    }

    DefaultLitePullConsumer litePullConsumer(String group, String member) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(group + "-" + member);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        shutdowns.push(consumer::shutdown);
        return consumer;
    }

    /** Creates the topic through the client's own admin call and waits until its route has all queues. */
    List<MessageQueue> createTopic(DefaultMQProducer producer, String topic, int queues) throws Exception {
        Method creator = Arrays.stream(DefaultMQProducer.class.getMethods()).filter(Clients::createsTopic)
            .findFirst().orElseThrow();
        if (creator.getParameterCount() == 3) {
            creator.invoke(producer, AUTO_CREATE_TOPIC, topic, queues);
        } else {
            creator.invoke(producer, AUTO_CREATE_TOPIC, topic, queues, Map.of());
        }
        await("the route of " + topic, 15_000, () -> queues(producer, topic).size() == queues);
        return queues(producer, topic);
    }

    /** createTopic(key, topic, queues) in 4.x, createTopic(key, topic, queues, attributes) in 5.x. */
    private static boolean createsTopic(Method method) {
        Class<?>[] types = method.getParameterTypes();
        return method.getName().equals("createTopic") && types[2] == int.class
            && (types.length == 3 || types.length == 4 && types[3] == Map.class);
    }

    private static List<MessageQueue> queues(DefaultMQProducer producer, String topic) {
        try {
            List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
            queues.sort(Comparator.naturalOrder());
            return queues;
        } catch (MQClientException noRouteYet) {
            return List.of();
        }
    }

    /**
     * Everything a topic holds, queue by queue in offset order, through the plain pull consumer.
     *
     * <p>Waits for the expected number: a broker may acknowledge a message a moment before its queue shows it.
     */
    Map<Integer, List<MessageExt>> readAll(String topic, String group, int expected) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName("reader-" + group);
        consumer.start();
        try {
            Map<Integer, List<MessageExt>> messages = new TreeMap<>();
            long deadline = System.currentTimeMillis() + 15_000;
            do {
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                    readOn(consumer, queue, messages.computeIfAbsent(queue.getQueueId(), id -> new ArrayList<>()));
                }
            } while (count(messages) < expected && System.currentTimeMillis() < deadline);
            return messages;
        } finally {
            consumer.shutdown();
        }
    }

    /** Adds what the queue holds beyond the messages that were read before. */
    private static void readOn(DefaultMQPullConsumer consumer, MessageQueue queue, List<MessageExt> messages)
        throws Exception {
        long offset = messages.isEmpty() ? consumer.minOffset(queue)
            : messages.get(messages.size() - 1).getQueueOffset() + 1;
        long end = consumer.maxOffset(queue);
        while (offset < end) {
            PullResult pulled = consumer.pull(queue, "*", offset, 32);
            if (pulled.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException("pull of " + queue + " at " + offset + ": " + pulled);
            }
            messages.addAll(pulled.getMsgFoundList());
            offset = pulled.getNextBeginOffset();
        }
    }

    static int count(Map<Integer, List<MessageExt>> messages) {
        return messages.values().stream().mapToInt(Collection::size).sum();
    }

    /** True when it came true in time; scenarios report what they have either way. */
    static boolean waitFor(long timeoutMs, BooleanSupplier condition) throws InterruptedException {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                return false;
            }
            Thread.sleep(20);
        }
        return true;
    }

    private static void await(String what, long timeoutMs, BooleanSupplier condition) throws InterruptedException {
        if (!waitFor(timeoutMs, condition)) {
            throw new IllegalStateException("no sign of " + what + " after " + timeoutMs + " ms");
        }
    }

    @Override
    public void close() {
        while (!shutdowns.isEmpty()) {
            shutdowns.pop().run();
        }
    }
}

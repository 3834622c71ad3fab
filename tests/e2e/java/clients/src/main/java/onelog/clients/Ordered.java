package onelog.clients;

import java.nio.ByteBuffer;
import java.nio.channels.ByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A group that consumes in order while members and the broker are killed; see tests/e2e/test_order.py.
 *
 * <p>With {@code --member} the program is one member: it appends MEMBER QUEUE OFFSET BODY to a log that all members
 * share when it is done with a message, of which some take longer than others. Without, it sends numbers of every key,
 * each again until it is acknowledged, up to the one that is begun after the file {@code --enough} is there.
 */
final class Ordered {
    private static final long[] WORK_NANOS = {4_000_000, 2_000_000, 0};
    private static final long ROUND_NANOS = 10_000_000;

    private Ordered() {
    }

    static void run(Options options, Report report) throws Exception {
        try (Clients clients = new Clients(options)) {
            if (options.text("member", "").isEmpty()) {
                send(clients, options, report);
            } else {
                consume(clients, options, report);
            }
        }
    }

    private static void send(Clients clients, Options options, Report report) throws Exception {
        String topic = options.text("topic");
        int keys = options.number("keys", 12);
        Path enough = Path.of(options.text("enough"));
        DefaultMQProducer producer = clients.producer(topic + "-producer");
        producer.setSendMsgTimeout(2_000);
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        queues.sort(Comparator.naturalOrder());
        report.line("ready", Map.of());
        for (int number = options.number("first", 0);; number++) {
            boolean last = Files.exists(enough);
            for (int key = 0; key < keys; key++) {
                byte[] body = (key + " " + number).getBytes(StandardCharsets.UTF_8);
                while (!send(producer, new Message(topic, body), queues.get(key % queues.size()))) {
                    Thread.sleep(20);
                }
            }
            if (last) {
                report.done(Map.of("last", number));
                return;
            }
            LockSupport.parkNanos(ROUND_NANOS);
        }
    }

    private static boolean send(DefaultMQProducer producer, Message message, MessageQueue queue)
        throws InterruptedException {
        try {
            return producer.send(message, queue).getSendStatus() == SendStatus.SEND_OK;
        } catch (InterruptedException stopped) {
            throw stopped;
        } catch (Exception outage) {
            return false;
        }
    }

    private static void consume(Clients clients, Options options, Report report) throws Exception {
        String topic = options.text("topic");
        String member = options.text("member");
        ByteChannel log = Files.newByteChannel(Path.of(options.text("log")),
            StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", member);
        Clients.beatOften(consumer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            for (MessageExt message : batch) {
                LockSupport.parkNanos(WORK_NANOS[(int) (message.getQueueOffset() % WORK_NANOS.length)]);
                write(log, member + " " + message.getQueueId() + " " + message.getQueueOffset() + " "
                    + new String(message.getBody(), StandardCharsets.UTF_8) + "\n");
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        report.line("ready", Map.of("member", member));
        Thread.currentThread().join();
    }

    /** One write, which an open with APPEND makes whole. */
    private static void write(ByteChannel log, String line) {
        try {
            synchronized (log) {
                log.write(ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8)));
            }
        } catch (java.io.IOException failure) {
            throw new java.io.UncheckedIOException(failure);
        }
    }
}

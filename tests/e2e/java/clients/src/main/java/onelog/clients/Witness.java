package onelog.clients;

import com.alibaba.fastjson.JSON;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.ByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and a group that consumes in order, while servers fail; both write histories (tests/e2e/faults/history.py).
 *
 * <p>For each key a message is sent again until it is acknowledged, and only then the next one, until there is a file
 * "enough" in {@code --folder}; the consumer goes on until the program is ended.
 */
final class Witness {
    private static final int PAUSE_MS = 20;
    private static final String NAME = "java";

    private final DefaultMQProducer producer;
    private final String topic;
    private final Path enough;
    private final History sent;

    private Witness(DefaultMQProducer producer, String topic, Path enough, History sent) {
        this.producer = producer;
        this.topic = topic;
        this.enough = enough;
        this.sent = sent;
    }

    static void run(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        Path folder = Path.of(options.text("folder"));
        try (Clients clients = new Clients(options)) {
            History seen = new History(folder.resolve("java-consumer.jsonl"), topic,
                Map.of("role", "consumer", "group", topic + "-group", "ordered", true));
            consume(clients, topic, seen);
            DefaultMQProducer producer = clients.unstartedProducer("senders");
            meetNewMastersSoon(producer);
            producer.setSendMsgTimeout(3_000);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
            History sent = new History(folder.resolve("java-producer.jsonl"), topic, Map.of("role", "producer"));
            Witness witness = new Witness(producer, topic, folder.resolve("enough"), sent);
            Thread[] senders = new Thread[options.number("keys", 4)];
            for (int key = 0; key < senders.length; key++) {
                String name = "k" + key;
                senders[key] = new Thread(() -> witness.send(name), name);
                senders[key].start();
            }
            report.line("ready", Map.of());
            for (Thread sender : senders) {
                sender.join();
            }
            Files.createFile(folder.resolve("java.sent"));
            Thread.currentThread().join();
        }
    }

    /** The client asks for routes only every half minute unless told; it does not ask when a send fails. */
    private static void meetNewMastersSoon(org.apache.rocketmq.client.ClientConfig client) {
        client.setPollNameServerInterval(1_000);
        client.setHeartbeatBrokerInterval(2_000);
    }

    private void send(String key) {
        for (long number = 0; !Files.exists(enough);) {
            number += attempt(key, number) ? 1 : 0;
            try {
                Thread.sleep(PAUSE_MS);
            } catch (InterruptedException stopped) {
                return;
            }
        }
    }

    private boolean attempt(String key, long number) {
        String id = NAME + "/" + key + "/" + number;
        Map<String, Object> line = new LinkedHashMap<>(Map.of("op", "send", "id", id, "key", key, "number", number));
        line.put("begin", System.nanoTime());
        boolean safe = false;
        try {
            Message message = new Message(topic, "", id, id.getBytes(StandardCharsets.UTF_8));
            SendResult result = producer.send(message, new SelectMessageQueueByHash(), key);
            safe = result.getSendStatus() == SendStatus.SEND_OK;
            line.put("queue", result.getMessageQueue().getQueueId());
            line.put("offset", result.getQueueOffset());
            line.put("error", safe ? "" : result.getSendStatus().toString());
        } catch (Exception failure) {
            line.put("error", String.valueOf(failure.getMessage()));
        }
        line.put("end", System.nanoTime());
        line.put("result", safe ? "ok" : "failed");
        sent.add(line);
        return safe;
    }

    private static void consume(Clients clients, String topic, History seen) throws Exception {
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", "one");
        meetNewMastersSoon(consumer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            for (MessageExt message : batch) {
                String id = new String(message.getBody(), StandardCharsets.UTF_8);
                String[] parts = id.split("/");
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("op", "receive");
                line.put("id", id);
                line.put("key", parts[1]);
                line.put("number", Long.parseLong(parts[2]));
                line.put("queue", message.getQueueId());
                line.put("offset", message.getQueueOffset());
                line.put("begin", System.nanoTime());
                line.put("end", System.nanoTime());
                seen.add(line);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
    }

    /** Whole lines, also of a program that is killed: each is one write. */
    private static final class History {
        private final ByteChannel file;

        History(Path path, String topic, Map<String, ?> about) throws IOException {
            file = Files.newByteChannel(path, StandardOpenOption.CREATE, StandardOpenOption.TRUNCATE_EXISTING,
                StandardOpenOption.WRITE);
            Map<String, Object> line = new LinkedHashMap<>(Map.of("op", "client", "name", NAME, "kind", NAME));
            line.put("topic", topic);
            line.putAll(about);
            add(line);
        }

        synchronized void add(Map<String, ?> line) {
            try {
                file.write(ByteBuffer.wrap((JSON.toJSONString(line) + "\n").getBytes(StandardCharsets.UTF_8)));
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
    }
}

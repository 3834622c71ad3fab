package onelog.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** One half of a conversation, whose other half is a client of another make: each only sends, or only reads. */
final class Interop {
    private Interop() {
    }

    /** Sends messages with every field set, the last ones of them in one batch and in transactions; reports each. */
    static void send(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        int messages = options.number("messages", 10);
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer producer = clients.producer(topic + "-java");
            clients.createTopic(producer, topic, 4);
            compressWith(producer, options.text("compression", "ZLIB"));
            int large = options.number("large-bytes", 20_000);
            for (int number = 0; number < messages; number++) {
                report.line("sent", sent(producer.send(dressed(topic, number, large))));
            }
            List<Message> batch = new ArrayList<>();
            for (int number = messages; number < messages + 3; number++) {
                batch.add(dressed(topic, number, 0));
            }
            report.line("batch", sent(producer.send(batch)));
            report.done(Map.of());
        }
    }

    /** Sends transactions; the odd ones are rolled back, and every third only ends when the broker asks. */
    static void sendTransactions(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        TransactionMQProducer producer = new TransactionMQProducer(topic + "-transactions");
        producer.setNamesrvAddr(options.text("nameservers"));
        producer.setInstanceName("interop");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                long number = Payload.number(message.getBody());
                return number % 3 == 0 ? LocalTransactionState.UNKNOW : outcome(number);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return outcome(Payload.number(message.getBody()));
            }
        });
        producer.start();
        try (Clients clients = new Clients(options)) {
            clients.createTopic(producer, topic, 4);
            for (long number = 0; number < options.number("messages", 6); number++) {
                Message message = new Message(topic, "t" + number, "k" + number, Payload.body(number));
                report.line("sent", sent(producer.sendMessageInTransaction(message, null)));
            }
            // Whoever reads says when it has seen enough, by ending this program.
            report.line("waiting", Map.of());
            Thread.sleep(Long.MAX_VALUE);
        } finally {
            producer.shutdown();
        }
    }

    private static LocalTransactionState outcome(long number) {
        return number % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    /** Reads what others sent: every message with all that can be seen of it, until there were as many as expected. */
    static void read(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        int messages = options.number("messages", 10);
        AtomicInteger seen = new AtomicInteger();
        try (Clients clients = new Clients(options)) {
            DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-java", "one");
            Clients.beatOften(consumer);
            consumer.subscribe(topic, options.text("tags", "*"));
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                for (MessageExt message : batch) {
                    report.line("read", read(message));
                    seen.incrementAndGet();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            boolean inTime = Clients.waitFor(90_000, () -> seen.get() >= messages);
            report.done(Map.of("in_time", inTime));
        }
    }

    /** Asks questions that somebody else answers, from several threads. */
    static void ask(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        int threads = options.number("threads", 4);
        int requests = options.number("requests", 20);
        Map<String, String> replies = new ConcurrentHashMap<>();
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer requester = clients.producer(topic + "-java");
            ExecutorService pool = Executors.newFixedThreadPool(threads);
            List<Future<?>> asking = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                String prefix = "t" + thread + "-";
                asking.add(pool.submit(() -> {
                    for (int number = 0; number < requests; number++) {
                        String text = prefix + number;
                        try {
                            Message question = new Message(topic, "ask", text, bytes(text));
                            Message reply = requester.request(question, 20_000);
                            replies.put(text, new String(reply.getBody(), StandardCharsets.UTF_8) + "/"
                                + reply.getTags() + "/" + reply.getUserProperty("colour"));
                        } catch (Exception unanswered) {
                            replies.put(text, unanswered.toString());
                        }
                    }
                }));
            }
            for (Future<?> thread : asking) {
                thread.get();
            }
            pool.shutdown();
            report.done(Map.of("replies", new TreeMap<>(replies)));
        }
    }

    /** Answers the questions of others, until it is ended; a reply of some length is compressed. */
    static void answer(Options options, Report report) throws Exception {
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer replier = clients.producer(topic + "-java");
            clients.createTopic(replier, topic, 4);
            DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-java", "one");
            Clients.beatOften(consumer);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                for (MessageExt request : batch) {
                    String text = new String(request.getBody(), StandardCharsets.UTF_8);
                    String echo = text.startsWith("long") ? "re: " + text.repeat(1_000) : "re: " + text;
                    try {
                        Message reply = MessageUtil.createReplyMessage(request, bytes(echo));
                        reply.putUserProperty("colour", "grün");
                        replier.send(reply, 3_000);
                    } catch (Exception refused) {
                        report.line("refused", Map.of("error", refused.toString()));
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            report.line("waiting", Map.of());
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static Message dressed(String topic, int number, int large) {
        byte[] body = Payload.body(number, number % 2 == 1 ? large : 0);
        Message message = new Message(topic, "tag" + number % 3, "key" + number + " other", body);
        message.setFlag(number);
        message.putUserProperty("colour", "grün, blue: 你好");
        message.putUserProperty("number", Integer.toString(number));
        return message;
    }

    /** Clients before 5.0 have no choice: zlib. */
    private static void compressWith(DefaultMQProducer producer, String name) throws ReflectiveOperationException {
        if (name.equals("ZLIB")) {
            return;
        }
        var setter = Arrays.stream(DefaultMQProducer.class.getMethods())
            .filter(method -> method.getName().equals("setCompressType")).findFirst().orElseThrow();
        Object type = Arrays.stream(setter.getParameterTypes()[0].getEnumConstants())
            .filter(constant -> constant.toString().equals(name)).findFirst().orElseThrow();
        setter.invoke(producer, type);
    }

    private static Map<String, Object> sent(SendResult result) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("id", result.getMsgId());
        facts.put("offset_id", result.getOffsetMsgId());
        facts.put("queue", result.getMessageQueue().getQueueId());
        facts.put("offset", result.getQueueOffset());
        facts.put("transaction_id", result.getTransactionId());
        return facts;
    }

    private static Map<String, Object> read(MessageExt message) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("id", message.getMsgId());
        byte[] body = message.getBody();
        facts.put("body", body == null ? null : Base64.getEncoder().encodeToString(body));
        facts.put("number", Payload.number(body));
        facts.put("tags", message.getTags());
        facts.put("keys", message.getKeys());
        facts.put("flag", message.getFlag());
        facts.put("queue", message.getQueueId());
        facts.put("offset", message.getQueueOffset());
        facts.put("born_ms", message.getBornTimestamp());
        facts.put("properties", new TreeMap<>(message.getProperties()));
        return facts;
    }
}

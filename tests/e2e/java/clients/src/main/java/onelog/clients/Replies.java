package onelog.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request and reply: several threads ask at once, and each must get the answer to its own question. */
final class Replies {
    private static final byte[] SILENCE = "silence".getBytes(StandardCharsets.UTF_8);
    private static final int TIMEOUT_MS = 10_000;

    private Replies() {
    }

    static void run(Options options, Report report) throws Exception {
        int threads = options.number("threads", 4);
        int requests = options.number("requests", 100);
        String topic = options.text("topic");
        try (Clients clients = new Clients(options)) {
            DefaultMQProducer requester = clients.producer(topic + "-requester");
            clients.createTopic(requester, topic, 4);
            AtomicInteger refusedReplies = answer(clients, topic);
            warmUp(requester, topic);
            AtomicInteger wrong = new AtomicInteger();
            AtomicInteger failed = new AtomicInteger();
            AtomicLong slowestMs = new AtomicLong();
            ExecutorService pool = Executors.newFixedThreadPool(threads);
            List<Future<?>> asking = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                String prefix = "t" + thread + "-";
                asking.add(pool.submit(() -> {
                    for (int number = 0; number < requests; number++) {
                        long begin = System.nanoTime();
                        try {
                            String reply = ask(requester, topic, prefix + number);
                            if (!reply.equals("re: " + prefix + number)) {
                                wrong.incrementAndGet();
                            }
                        } catch (Exception unanswered) {
                            unanswered.printStackTrace();
                            failed.incrementAndGet();
                        }
                        slowestMs.accumulateAndGet((System.nanoTime() - begin) / 1_000_000, Math::max);
                    }
                }));
            }
            for (Future<?> thread : asking) {
                thread.get();
            }
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("asked", threads * requests);
            facts.put("wrong", wrong.get());
            facts.put("failed", failed.get());
            facts.put("refused_replies", refusedReplies.get());
            facts.put("slowest_ms", slowestMs.get());
            facts.put("timed_out", timesOut(requester, topic));
            report.done(facts);
        }
    }

    /** A consumer that answers everything but silence; how many of its replies the broker refused. */
    private static AtomicInteger answer(Clients clients, String topic) throws Exception {
        DefaultMQProducer replier = clients.producer(topic + "-replier");
        AtomicInteger refused = new AtomicInteger();
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", "one");
        Clients.beatOften(consumer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt request : batch) {
                String text = new String(request.getBody(), StandardCharsets.UTF_8);
                if (text.startsWith("silence")) {
                    continue;
                }
                try {
                    Message reply = MessageUtil.createReplyMessage(request,
                        ("re: " + text).getBytes(StandardCharsets.UTF_8));
                    replier.send(reply, 3_000);
                } catch (Exception refusal) {
                    refusal.printStackTrace();
                    refused.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return refused;
    }

    /** The first request waits for the consumer's first rebalance; it is not one of those that are counted. */
    private static void warmUp(DefaultMQProducer requester, String topic) throws InterruptedException {
        Clients.waitFor(60_000, () -> {
            try {
                return ask(requester, topic, "hello").equals("re: hello");
            } catch (Exception notYet) {
                return false;
            }
        });
    }

    private static String ask(DefaultMQProducer requester, String topic, String text) throws Exception {
        Message request = new Message(topic, text.getBytes(StandardCharsets.UTF_8));
        Message reply = requester.request(request, TIMEOUT_MS);
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }

    /** A request that nobody answers. */
    private static boolean timesOut(DefaultMQProducer requester, String topic) throws Exception {
        try {
            requester.request(new Message(topic, SILENCE), 1_500);
            return false;
        } catch (RequestTimeoutException expected) {
            return true;
        }
    }
}

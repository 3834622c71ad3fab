package onelog.grpc;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Collections;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** One part of a contest, as benchmarks/contest.py has it: run, warm up, measure, tell. */
public final class Contest {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final int ON_THE_WAY = 256;
    private static final int THREADS = 16;
    private static final int LISTENER_THREADS = 20;
    private static final int RECEIVED_MAX = 32;
    private static final byte[] BODY = new byte[128];

    private final LongAdder count = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final LongAdder redelivered = new LongAdder();
    private final ClientConfiguration settings;
    private final String topic;
    private final String group;

    private Contest(String endpoints, String topic, String group) {
        this.settings = ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        this.topic = topic;
        this.group = group;
    }

    public static void main(String[] args) throws Exception {
        Contest contest = new Contest(args[1], args[2], args[3]);
        if (args[0].equals("java-send")) {
            contest.send();
        } else if (args[0].equals("java-push")) {
            contest.push();
        } else {
            contest.simple();
        }
        contest.watch(Long.parseLong(args[4]), Double.parseDouble(args[5]), Double.parseDouble(args[6]));
    }

    private interface Step {
        void run() throws Exception;
    }

    private void again(Step step) {
        Thread thread = new Thread(() -> {
            while (true) {
                try {
                    step.run();
                } catch (Exception error) {
                    fail(error);
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void fail(Throwable error) {
        failed.increment();
        System.err.println(error);
    }

    private void send() throws Exception {
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(settings).setTopics(topic).build();
        Semaphore free = new Semaphore(ON_THE_WAY);
        again(() -> {
            free.acquire();
            producer.sendAsync(PROVIDER.newMessageBuilder().setTopic(topic).setBody(BODY).build())
                .whenComplete((receipt, error) -> {
                    free.release();
                    if (error == null) {
                        count.increment();
                    } else {
                        fail(error);
                    }
                });
        });
    }

    private Map<String, FilterExpression> subscription() {
        return Collections.singletonMap(topic, FilterExpression.SUB_ALL);
    }

    private void heard(MessageView view) {
        count.increment();
        if (view.getDeliveryAttempt() > 1) {
            redelivered.increment();
        }
    }

    private void push() throws Exception {
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(settings).setConsumerGroup(group)
            .setSubscriptionExpressions(subscription()).setConsumptionThreadCount(LISTENER_THREADS)
            .setMessageListener(view -> {
                heard(view);
                return ConsumeResult.SUCCESS;
            }).build();
    }

    private void simple() throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(settings)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(10))
            .setSubscriptionExpressions(subscription()).build();
        for (int i = 0; i < THREADS; i++) {
            again(() -> {
                for (MessageView view : consumer.receive(RECEIVED_MAX, Duration.ofSeconds(60))) {
                    consumer.ack(view);
                    heard(view);
                }
            });
        }
    }

    private void watch(long messages, double warmUpSeconds, double seconds) throws Exception {
        long started = System.nanoTime();
        while (count.sum() == 0) {
            if (System.nanoTime() - started > 40e9) {
                System.err.println("no message within 40 s");
                System.exit(1);
            }
            Thread.sleep(20);
        }
        long few = messages == 0 ? Long.MAX_VALUE : messages / 2;
        long all = messages == 0 ? Long.MAX_VALUE : messages;
        started = System.nanoTime();
        while (System.nanoTime() - started < warmUpSeconds * 1e9 && count.sum() < few) {
            Thread.sleep(20);
        }
        System.out.println("{\"event\": \"begin\"}");
        long countBefore = count.sum();
        long failedBefore = failed.sum();
        long redeliveredBefore = redelivered.sum();
        long cpuBefore = SYSTEM.getProcessCpuTime();
        long began = System.nanoTime();
        while (System.nanoTime() - began < seconds * 1e9 && count.sum() < all) {
            Thread.sleep(20);
        }
        System.out.println(String.format(Locale.ROOT,
            "{\"event\": \"end\", \"count\": %d, \"failed\": %d, \"redelivered\": %d, \"cpu_s\": %.6f, \"wall_s\": %.6f}",
            count.sum() - countBefore, failed.sum() - failedBefore, redelivered.sum() - redeliveredBefore,
            (SYSTEM.getProcessCpuTime() - cpuBefore) / 1e9, (System.nanoTime() - began) / 1e9));
        // What is on the way ends with the process: no client's farewell is measured.
        Runtime.getRuntime().halt(0);
    }
}

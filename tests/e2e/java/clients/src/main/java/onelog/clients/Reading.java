package onelog.clients;

import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A consumer of some kind that reports every message until it is ended, while brokers come and go.
 *
 * <p>Routes are asked for every second: with the usual half a minute a client is as late to see that a broker is gone.
 */
final class Reading {
    private static final int ROUTES_MS = 1_000;

    private final Report report;
    private final int workMs;

    private Reading(Options options, Report report) {
        this.report = report;
        this.workMs = options.number("work-ms", 0);
    }

    static void run(Options options, Report report) throws Exception {
        Reading reading = new Reading(options, report);
        try (Clients clients = new Clients(options)) {
            if (options.text("kind").equals("pull")) {
                reading.pull(clients, options);
            } else {
                reading.push(clients, options);
            }
        }
    }

    private void push(Clients clients, Options options) throws Exception {
        String topic = options.text("topic");
        DefaultMQPushConsumer consumer = clients.pushConsumer(topic + "-group", "one");
        consumer.setPollNameServerInterval(ROUTES_MS);
        Clients.beatOften(consumer);
        // Little in hand, so that most has to be read when the master is gone.
        consumer.setPullThresholdForQueue(8);
        consumer.setPullBatchSize(4);
        consumer.subscribe(topic, "*");
        if (options.text("kind").equals("pop")) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            DefaultMQPushConsumer.class.getMethod("setPopBatchNums", int.class).invoke(consumer, 4);
        }
        if (options.text("kind").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                batch.forEach(this::receive);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                batch.forEach(this::receive);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        report.line("ready", Map.of());
        Thread.currentThread().join();
    }

    private void pull(Clients clients, Options options) throws Exception {
        String topic = options.text("topic");
        DefaultLitePullConsumer consumer = clients.litePullConsumer(topic + "-group", "one");
        consumer.setPollNameServerInterval(ROUTES_MS);
        consumer.setPullThresholdForQueue(8);
        consumer.setPullBatchSize(4);
        consumer.subscribe(topic, "*");
        consumer.start();
        report.line("ready", Map.of());
        while (true) {
            consumer.poll(200).forEach(this::receive);
        }
    }

    private void receive(MessageExt message) {
        LockSupport.parkNanos(workMs * 1_000_000L);
        report.line("received", Map.of("number", Payload.number(message.getBody()), "queue", message.getQueueId()));
    }
}

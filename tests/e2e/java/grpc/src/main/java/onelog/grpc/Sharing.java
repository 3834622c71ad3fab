package onelog.grpc;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;

/** A member of a group that has others, too: when told, by a line, it sends messages; it prints what it heard. */
public final class Sharing {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final long QUIET_MS = 5_000;

    private Sharing() {
    }

    public static void main(String[] args) throws Exception {
        ClientConfiguration settings = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        String topic = args[1];
        List<String> heard = Collections.synchronizedList(new ArrayList<>());
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(settings)
            .setConsumerGroup(args[2])
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                heard.add(view.getMessageId().toString());
                return ConsumeResult.SUCCESS;
            }).build();
        List<String> sent = new ArrayList<>();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(settings).setTopics(topic)
                .build()) {
            System.out.println("{\"event\": \"ready\"}");
            System.in.read();
            for (int number = 0; number < Integer.parseInt(args[3]); number++) {
                byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                sent.add(producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build())
                    .getMessageId().toString());
            }
        }
        int before = -1;
        while (heard.size() != before) {
            before = heard.size();
            Thread.sleep(QUIET_MS);
        }
        consumer.close();
        System.out.println("{\"event\": \"done\", \"sent\": " + json(sent) + ", \"heard\": " + json(heard) + "}");
        System.exit(0);
    }

    private static String json(List<String> texts) {
        return texts.isEmpty() ? "[]" : "[\"" + String.join("\", \"", texts) + "\"]";
    }
}

package onelog.amqp;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What RabbitMQ's Java client does with a broker: argument 1 is its address. */
public final class Main {
    private static final int ROUNDS = 50;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        factory.setAutomaticRecoveryEnabled(false);
        try (Connection connection = factory.newConnection()) {
            tell("deaths", deaths(connection));
            tell("expired", expired(connection));
            tell("transaction", transaction(connection));
            tell("open", closes(connection));
        }
    }

    private static void tell(String name, Object got) {
        System.out.printf("{\"name\": \"%s\", \"got\": %s}%n", name, got);
    }

    /** How often a message died, as programs ask: by a cast. */
    private static long deaths(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        Map<String, Object> back = new HashMap<>();
        back.put("x-dead-letter-exchange", "");
        back.put("x-dead-letter-routing-key", "java-dead");
        channel.queueDeclare("java-dying", false, false, true, back);
        back.put("x-dead-letter-routing-key", "java-dying");
        channel.queueDeclare("java-dead", false, false, true, back);
        channel.basicPublish("", "java-dying", null, "x".getBytes());
        long count = 0;
        for (int time = 0; time < 3; time++) {
            GetResponse found = await(channel, "java-dying");
            channel.basicReject(found.getEnvelope().getDeliveryTag(), false);
            found = await(channel, "java-dead");
            Map<String, Object> headers = found.getProps().getHeaders();
            for (Object each : (List<?>) headers.get("x-death")) {
                Map<?, ?> death = (Map<?, ?>) each;
                if (death.get("queue").toString().equals("java-dying")) {
                    count = (Long) death.get("count");
                }
            }
            channel.basicReject(found.getEnvelope().getDeliveryTag(), false);
        }
        channel.queueDelete("java-dying");
        channel.queueDelete("java-dead");
        channel.close();
        return count;
    }

    /** Whether a message that came back expires. */
    private static boolean expired(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        String queue = channel.queueDeclare().getQueue();
        AMQP.BasicProperties soon = new AMQP.BasicProperties.Builder().expiration("300").build();
        channel.basicPublish("", queue, soon, "x".getBytes());
        channel.basicNack(await(channel, queue).getEnvelope().getDeliveryTag(), false, true);
        Thread.sleep(1_000);
        boolean gone = channel.messageCount(queue) == 0;
        channel.close();
        return gone;
    }

    /** How many messages of one transaction there are, before the commit and behind it. */
    private static String transaction(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        Channel observer = connection.createChannel();
        String queue = observer.queueDeclare("java-tx", true, false, false, null).getQueue();
        channel.txSelect();
        for (int number = 0; number < 12_000; number++) {
            channel.basicPublish("", queue, null, new byte[1_500]);
        }
        long before = observer.messageCount(queue);
        channel.txCommit();
        long after = observer.messageCount(queue);
        observer.queueDelete(queue);
        channel.close();
        observer.close();
        return "[" + before + ", " + after + "]";
    }

    /** Whether the connection is open after channels that both sides have closed. */
    private static boolean closes(Connection connection) throws Exception {
        for (int round = 0; round < ROUNDS; round++) {
            Channel channel = connection.createChannel();
            channel.basicAck(99, false);
            try {
                channel.close();
            } catch (Exception closed) {
                // The broker was faster.
            }
        }
        return connection.isOpen();
    }

    private static GetResponse await(Channel channel, String queue) throws Exception {
        for (int time = 0; time < 500; time++) {
            GetResponse found = channel.basicGet(queue, false);
            if (found != null) {
                return found;
            }
            Thread.sleep(10);
        }
        throw new IllegalStateException("nothing came to " + queue);
    }
}

package onelog.store;

import java.net.InetSocketAddress;
import java.util.LinkedHashMap;
import java.util.Map;

/** A message before it is stored, in terms that both release lines share. */
final class Draft {
    String topic;
    int queueId;
    byte[] body;
    int flag;
    int sysFlag;
    long bornTimestamp;
    InetSocketAddress bornHost;
    InetSocketAddress storeHost;
    int reconsumeTimes;
    long preparedTransactionOffset;
    final Map<String, String> properties = new LinkedHashMap<>();
}

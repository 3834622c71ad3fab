package onelog.clients;

import com.alibaba.fastjson.JSON;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;

/** Facts as JSON lines: one object per line, its "event" first, whole lines even when threads report at once. */
final class Report {
    private final PrintStream out;

    Report(PrintStream out) {
        this.out = out;
    }

    synchronized void line(String event, Map<String, ?> facts) {
        Map<String, Object> object = new LinkedHashMap<>();
        object.put("event", event);
        object.putAll(facts);
        out.println(JSON.toJSONString(object));
        out.flush();
    }

    /** The last line of a scenario that ran to its end. */
    void done(Map<String, ?> facts) {
        line("done", facts);
    }
}

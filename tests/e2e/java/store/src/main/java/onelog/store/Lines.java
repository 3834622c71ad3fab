package onelog.store;

import com.alibaba.fastjson.JSON;
import java.io.PrintStream;
import java.util.Map;

/** Results, one JSON object per line. */
final class Lines {
    private final PrintStream out;

    Lines(PrintStream out) {
        this.out = out;
    }

    void print(Map<String, Object> line) {
        out.print(JSON.toJSONString(line) + "\n");
    }

    void flush() {
        out.flush();
    }
}

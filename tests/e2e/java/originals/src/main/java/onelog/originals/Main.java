package onelog.originals;

import java.io.OutputStream;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs classes of RocketMQ's tests (or one method, `Class#method`), and prints a line for each test. */
public final class Main {
    private static final String PACKAGE = "org.apache.rocketmq.test.";

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        for (String arg : args) {
            String[] parts = arg.split("#");
            Request request = Request.aClass(Class.forName(PACKAGE + parts[0]));
            if (parts.length > 1) {
                request = request.filterWith(named(parts[1]));
            }
            JUnitCore core = new JUnitCore();
            core.addListener(new Lines(out));
            core.run(request);
        }
        out.flush();
        System.exit(0);
    }

    private static Filter named(String method) {
        return new Filter() {
            @Override
            public boolean shouldRun(Description description) {
                if (description.isTest()) {
                    return description.getMethodName().startsWith(method);
                }
                return description.getChildren().stream().anyMatch(this::shouldRun);
            }

            @Override
            public String describe() {
                return method;
            }
        };
    }

    private static final class Lines extends RunListener {
        private final PrintStream out;
        private final Map<Description, String> failed = new HashMap<>();

        Lines(PrintStream out) {
            this.out = out;
        }

        @Override
        public void testFailure(Failure failure) {
            // The first is why: what cleans up after it fails, too.
            failed.putIfAbsent(failure.getDescription(), failure.getTrace());
            if (!failure.getDescription().isTest()) {
                testFinished(failure.getDescription());
            }
        }

        @Override
        public void testFinished(Description test) {
            String why = failed.get(test);
            String name = test.getTestClass().getSimpleName() + "." + test.getMethodName();
            out.println("{\"name\": " + quoted(name) + ", \"failed\": " + (why == null ? "null" : quoted(why)) + "}");
            out.flush();
        }
    }

    private static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (char each : text.substring(0, Math.min(text.length(), 1500)).toCharArray()) {
            made.append(each == '"' || each == '\\' ? "\\" + each : each < 32 ? String.format("\\u%04x", (int) each) : each);
        }
        return made.append('"').toString();
    }
}

package onelog.clients;

import java.io.IOException;
import java.util.Map;
import java.util.TreeMap;

/**
 * Runs one named scenario with the official client and reports what it saw as JSON lines on standard output.
 *
 * <p>Invariant: a scenario states facts and judges nothing; the last line is {@code {"event":"done",...}} exactly when
 * the scenario ran to its end, and the exit status is 0 in that case only. Closing standard input ends the program.
 */
public final class Main {
    /** A scenario gets its options and a place to report to. */
    interface Scenario {
        void run(Options options, Report report) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = new TreeMap<>();

    static {
        SCENARIOS.put("sync", Sending::sync);
        SCENARIOS.put("async", Sending::async);
        SCENARIOS.put("oneway", Sending::oneway);
        SCENARIOS.put("batch", Sending::batch);
        SCENARIOS.put("selector", Sending::selector);
        SCENARIOS.put("spread", Delivery::spread);
        SCENARIOS.put("concurrent", Churn::concurrent);
        SCENARIOS.put("orderly", Churn::orderly);
        SCENARIOS.put("broadcasting", Delivery::broadcasting);
        SCENARIOS.put("resume", Delivery::resume);
        SCENARIOS.put("timestamp", Delivery::timestamp);
        SCENARIOS.put("litepull-assign", LitePull::assign);
        SCENARIOS.put("litepull-subscribe", LitePull::subscribe);
        SCENARIOS.put("litepull-seek", LitePull::seek);
        SCENARIOS.put("tags", Filters::tags);
        SCENARIOS.put("sql", Filters::sql);
        SCENARIOS.put("restart", Outage::restart);
        SCENARIOS.put("linger", Outage::linger);
        SCENARIOS.put("retries", Retries::run);
        SCENARIOS.put("tracing", Tracing::run);
        SCENARIOS.put("smoke", Smoke::run);
        SCENARIOS.put("bulk", Bulk::run);
        SCENARIOS.put("paced", Paced::run);
        SCENARIOS.put("transactions", Transactions::courses);
        SCENARIOS.put("transactions-victim", Transactions::victim);
        SCENARIOS.put("transactions-heir", Transactions::heir);
        SCENARIOS.put("replies", Replies::run);
        SCENARIOS.put("pop", Pop::run);
        SCENARIOS.put("ordered", Ordered::run);
        SCENARIOS.put("witness", Witness::run);
        SCENARIOS.put("reading", Reading::run);
        SCENARIOS.put("timing", Timing::run);
        SCENARIOS.put("timing-far", Timing::far);
        SCENARIOS.put("interop-send", Interop::send);
        SCENARIOS.put("interop-send-transactions", Interop::sendTransactions);
        SCENARIOS.put("interop-read", Interop::read);
        SCENARIOS.put("interop-ask", Interop::ask);
        SCENARIOS.put("interop-answer", Interop::answer);
    }

    private Main() {
    }

    public static void main(String[] args) {
        Report report = new Report(System.out);
        Scenario scenario = args.length == 0 ? null : SCENARIOS.get(args[0]);
        if (scenario == null) {
            System.err.println("usage: Main SCENARIO --name value ...; scenarios: " + SCENARIOS.keySet());
            System.exit(2);
        }
        exitWithParent();
        try {
            scenario.run(Options.parse(args), report);
        } catch (Throwable failure) {
            failure.printStackTrace();
            report.line("failed", Map.of("error", failure.toString()));
            System.exit(1);
        }
        System.exit(0);
    }

    /** The parent holds our standard input open; when it is gone, so are we. */
    private static void exitWithParent() {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException gone) {
                // A broken pipe means the same as its end.
            }
            Runtime.getRuntime().halt(3);
        }, "parent-watch");
        watcher.setDaemon(true);
        watcher.start();
    }
}

package onelog.kafka;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.streaming.Trigger;

/**
 * Spark's own connector for Kafka: writes a topic, reads it, and copies it to another by a query that
 * has a checkpoint and is started anew after more has come. Arguments: bootstrap, folder, count.
 */
public final class SparkJob {
    private final SparkSession spark;
    private final String bootstrap;
    private final String folder;

    private SparkJob(SparkSession spark, String bootstrap, String folder) {
        this.spark = spark;
        this.bootstrap = bootstrap;
        this.folder = folder;
    }

    public static void main(String[] args) throws Exception {
        try (SparkSession spark = SparkSession.builder()
                .master("local[2]")
                .config("spark.ui.enabled", "false")
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.sql.warehouse.dir", args[1] + "/warehouse")
                .config("spark.local.dir", args[1] + "/local")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .getOrCreate()) {
            new SparkJob(spark, args[0], args[1]).run(Integer.parseInt(args[2]));
        }
    }

    private void run(int count) throws Exception {
        write(0, count);
        tell("written", read("orders", "startingOffsets", "earliest"));
        copy();
        tell("copied", read("copies", "startingOffsets", "earliest"));
        write(count, 2 * count);
        copy();
        tell("copied again", read("copies", "startingTimestamp", "1000"));
    }

    private void write(int from, int to) {
        Dataset<Row> rows = spark.range(from, to).toDF("id");
        rows.selectExpr(
                        "concat('k', id) as key",
                        "cast(id as string) as value",
                        "array(struct('number' as key, cast(cast(id as string) as binary) as value)) as headers")
                .write()
                .format("kafka")
                .option("kafka.bootstrap.servers", bootstrap)
                .option("includeHeaders", "true")
                .option("topic", "orders")
                .save();
    }

    private Dataset<Row> read(String topic, String where, String from) {
        return spark.read()
                .format("kafka")
                .option("kafka.bootstrap.servers", bootstrap)
                .option("kafka.isolation.level", "read_committed")
                .option("includeHeaders", "true")
                .option("subscribe", topic)
                .option(where, from)
                .load();
    }

    private void copy() throws Exception {
        spark.readStream()
                .format("kafka")
                .option("kafka.bootstrap.servers", bootstrap)
                .option("includeHeaders", "true")
                .option("subscribe", "orders")
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", "100")
                .load()
                .select("key", "value", "headers")
                .writeStream()
                .format("kafka")
                .option("kafka.bootstrap.servers", bootstrap)
                .option("includeHeaders", "true")
                .option("topic", "copies")
                .option("checkpointLocation", folder + "/checkpoint")
                .trigger(Trigger.AvailableNow())
                .start()
                .awaitTermination();
    }

    private void tell(String event, Dataset<Row> rows) {
        Row found = rows.selectExpr(
                        "cast(cast(value as string) as bigint) as number",
                        "cast(key as string) = concat('k', cast(value as string))"
                                + " and cast(headers[0].value as string) = cast(value as string) as whole")
                .agg(
                        functions.count("number"),
                        functions.count_distinct(functions.col("number")),
                        functions.coalesce(functions.sum("number"), functions.lit(0L)),
                        functions.coalesce(functions.min("whole"), functions.lit(true)))
                .head();
        System.out.printf(
                "{\"event\": \"%s\", \"rows\": %d, \"distinct\": %d, \"sum\": %d, \"whole\": %b}%n",
                event, found.getLong(0), found.getLong(1), found.getLong(2), found.getBoolean(3));
    }
}

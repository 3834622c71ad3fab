/* A client on librdkafka that drives one Kafka broker, and tells in one line of JSON what it saw.
 *
 *   kafka_client produce BROKER TOPIC BYTES MESSAGES 0 NAME=VALUE...
 *   kafka_client consume BROKER TOPIC PARTITIONS MESSAGES SKIPPED NAME=VALUE...
 *   kafka_client latency BROKER TOPIC RATE SECONDS WARM_UP_SECONDS NAME=VALUE...
 *
 * It writes "begin" and "end" around the stretch that counts, so that whoever listens can look at
 * the broker's CPU time at the same moments. Messages go round the partitions as librdkafka does it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <librdkafka/rdkafka.h>

enum { CONSUME_BATCH = 10000, LATENCIES_MAX = 4 << 20 };

static long long delivered, failed;
static long long *latencies_ns;
static int latencies;
static double counts_from_s;
static volatile int is_over;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void tell_begin(void) {
    puts("begin");
    fflush(stdout);
}

static void tell_end(long long messages, double seconds, double cpu) {
    printf("end {\"messages\": %lld, \"seconds\": %.6f, \"cpu_s\": %.6f, \"failed\": %lld}\n", messages, seconds, cpu,
           failed);
    fflush(stdout);
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err)
        failed++;
    else
        delivered++;
}

static rd_kafka_t *make(rd_kafka_type_t type, const char *broker, int count, char **settings) {
    char why[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (rd_kafka_conf_set(conf, "bootstrap.servers", broker, why, sizeof why)) die("bootstrap.servers", why);
    for (int i = 0; i < count; i++) {
        char *value = strchr(settings[i], '=');
        if (!value) die(settings[i], "not NAME=VALUE");
        *value = 0;
        if (rd_kafka_conf_set(conf, settings[i], value + 1, why, sizeof why)) die(settings[i], why);
        *value = '=';
    }
    if (type == RD_KAFKA_PRODUCER) rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *client = rd_kafka_new(type, conf, why, sizeof why);
    if (!client) die("rd_kafka_new", why);
    return client;
}

static void send_one(rd_kafka_t *client, rd_kafka_topic_t *topic, void *body, size_t size) {
    while (rd_kafka_produce(topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, body, size, NULL, 0, NULL) == -1) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            die("rd_kafka_produce", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(client, 1);
    }
}

static char *body_of(size_t size) {
    char *body = malloc(size + 16);
    for (size_t i = 0; i < size; i++) body[i] = 'a' + rand() % 26;
    return body;
}

static void produce(rd_kafka_t *client, rd_kafka_topic_t *topic, size_t size, long long messages) {
    char *body = body_of(size);
    double begin = now_s(), cpu = cpu_s();
    tell_begin();
    for (long long i = 0; i < messages; i++) {
        send_one(client, topic, body, size);
        if (i % 1000 == 0) rd_kafka_poll(client, 0);
    }
    if (rd_kafka_flush(client, 120000)) die("rd_kafka_flush", "messages are left");
    tell_end(delivered, now_s() - begin, cpu_s() - cpu);
}

static rd_kafka_queue_t *read_all(rd_kafka_t *client, rd_kafka_topic_t *topic, int partitions, int64_t from) {
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    for (int i = 0; i < partitions; i++)
        if (rd_kafka_consume_start_queue(topic, i, from, queue) == -1)
            die("rd_kafka_consume_start_queue", rd_kafka_err2str(rd_kafka_last_error()));
    return queue;
}

static void consume(rd_kafka_t *client, rd_kafka_topic_t *topic, int partitions, long long messages, long long skipped) {
    static rd_kafka_message_t *found[CONSUME_BATCH];
    rd_kafka_queue_t *queue = read_all(client, topic, partitions, RD_KAFKA_OFFSET_BEGINNING);
    double begin = 0, cpu = 0, deadline = now_s() + 120;
    long long seen = 0, before = 0;
    while (seen < messages && now_s() < deadline) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 1000, found, CONSUME_BATCH);
        for (ssize_t i = 0; i < count; i++) {
            if (!found[i]->err) seen++;
            rd_kafka_message_destroy(found[i]);
        }
        if (!begin && seen >= skipped) {
            tell_begin();
            begin = now_s(), before = seen, cpu = cpu_s();
        }
    }
    if (seen < messages) die("consume", "not all messages came within two minutes");
    tell_end(seen - before, now_s() - begin, cpu_s() - cpu);
}

static void *watch(void *queue) {
    static rd_kafka_message_t *found[CONSUME_BATCH];
    while (!is_over) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 1, found, CONSUME_BATCH);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
        for (ssize_t i = 0; i < count; i++) {
            long long sent_ns;
            if (!found[i]->err && found[i]->len >= sizeof sent_ns) {
                memcpy(&sent_ns, found[i]->payload, sizeof sent_ns);
                if (counts_from_s && sent_ns / 1e9 >= counts_from_s && latencies < LATENCIES_MAX)
                    latencies_ns[latencies++] = now_ns - sent_ns;
            }
            rd_kafka_message_destroy(found[i]);
        }
    }
    return NULL;
}

static int compare(const void *one, const void *other) {
    long long a = *(const long long *)one, b = *(const long long *)other;
    return (a > b) - (a < b);
}

static void latency(rd_kafka_t *client, rd_kafka_topic_t *topic, const char *broker, const char *name, int rate,
                    double seconds, double warm_up) {
    char settings_text[3][32] = {"fetch.wait.max.ms=500", "fetch.min.bytes=1", "fetch.error.backoff.ms=1"};
    char *settings[] = {settings_text[0], settings_text[1], settings_text[2]};
    rd_kafka_t *reader = make(RD_KAFKA_CONSUMER, broker, 3, settings);
    rd_kafka_topic_t *read = rd_kafka_topic_new(reader, name, NULL);
    rd_kafka_queue_t *queue = read_all(reader, read, 1, RD_KAFKA_OFFSET_END);
    latencies_ns = malloc(sizeof(long long) * LATENCIES_MAX);
    pthread_t thread;
    pthread_create(&thread, NULL, watch, queue);
    char *body = body_of(100);
    double first = now_s() + 1, end = first + warm_up + seconds;
    sleep(1);
    long long sent = 0;
    for (double now = now_s(); now < end; now = now_s()) {
        if (!counts_from_s && now - first >= warm_up) {
            tell_begin();
            counts_from_s = now;
        }
        for (long long due = (now - first) * rate; sent < due; sent++) {
            struct timespec at;
            clock_gettime(CLOCK_MONOTONIC, &at);
            long long at_ns = at.tv_sec * 1000000000LL + at.tv_nsec;
            memcpy(body, &at_ns, sizeof at_ns);
            send_one(client, topic, body, 100);
        }
        rd_kafka_poll(client, 0);
        usleep(200);
    }
    rd_kafka_flush(client, 10000);
    usleep(200000);
    is_over = 1;
    pthread_join(thread, NULL);
    qsort(latencies_ns, latencies, sizeof *latencies_ns, compare);
    if (!latencies) die("latency", "nothing came");
    printf("end {\"messages\": %d, \"seconds\": %.3f, \"failed\": %lld, \"p50_us\": %lld, \"p99_us\": %lld, "
           "\"p999_us\": %lld}\n",
           latencies, seconds, failed, latencies_ns[latencies / 2] / 1000,
           latencies_ns[(int)(latencies * 0.99)] / 1000, latencies_ns[(int)(latencies * 0.999)] / 1000);
    fflush(stdout);
}

int main(int count, char **words) {
    if (count < 7) die("usage", "kafka_client MODE BROKER TOPIC NUMBER NUMBER NUMBER [NAME=VALUE ...]");
    const char *mode = words[1], *broker = words[2], *name = words[3];
    double a = atof(words[4]), b = atof(words[5]), c = atof(words[6]);
    int reads = !strcmp(mode, "consume");
    rd_kafka_t *client = make(reads ? RD_KAFKA_CONSUMER : RD_KAFKA_PRODUCER, broker, count - 7, words + 7);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    if (!strcmp(mode, "produce")) produce(client, topic, a, b);
    else if (reads) consume(client, topic, a, b, c);
    else if (!strcmp(mode, "latency")) latency(client, topic, broker, name, a, b, c);
    else die(mode, "no such mode");
    _exit(0); /* What is on the way ends with the process: no farewell is measured. */
}

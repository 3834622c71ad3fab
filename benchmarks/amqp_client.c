/* A client on rabbitmq-c that drives one AMQP broker, and tells in one line of JSON what it saw.
 *
 *   amqp_client flow PORT NAME=VALUE...      publish and consume at once, until all is through
 *   amqp_client fill PORT NAME=VALUE...      only publish
 *   amqp_client drain PORT NAME=VALUE...     only consume
 *   amqp_client latency PORT NAME=VALUE...   at a steady rate; how long each message took
 *
 *   name=q messages=N bytes=N    queues=1        so many queues, name0, name1 ...
 *   fanout=0                     1: an exchange leads each message to all queues, not to the next
 *   durable=1 persistent=0       declare=1       0: the queues are there
 *   confirm=0                    so many messages may be unconfirmed; 0: none is confirmed
 *   prefetch=0 ack=0             every so many messages are acknowledged, 0: automatically
 *   skip=0                       messages that are consumed before the counting begins
 *   rate=N seconds=N warm_up=N   of latency
 *
 * A publisher and a consumer have a connection and a thread each. "begin" and "end" are written
 * around the stretch that counts, so that whoever listens can look at the broker at those moments.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <amqp.h>
#include <amqp_tcp_socket.h>

enum { FRAME_BYTES_MAX = 131072, LATENCIES_MAX = 4 << 20 };

static int port, queues = 1, fanout, durable = 1, persistent, declares = 1, confirm, prefetch, ack_every, rate;
static long long messages, skip, bytes;
static double seconds, warm_up;
static const char *name = "q";
static char *body, **names;
static double begin_s, end_s, begin_cpu_s;
static long long *latencies_ns;
static int latencies, is_over;
static double counts_from_s;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
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

static void check(amqp_connection_state_t connection, const char *what) {
    amqp_rpc_reply_t reply = amqp_get_rpc_reply(connection);
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) die(what, amqp_error_string2(reply.library_error));
    if (reply.reply_type != AMQP_RESPONSE_NORMAL) die(what, "the broker refused it");
}

static void begin(void) {
    puts("begin");
    fflush(stdout);
    begin_cpu_s = cpu_s();
    begin_s = now_s();
}

static amqp_connection_state_t connected(void) {
    amqp_connection_state_t made = amqp_new_connection();
    amqp_socket_t *line = amqp_tcp_socket_new(made);
    if (!line || amqp_socket_open(line, "127.0.0.1", port)) die("connect", "nobody listens");
    amqp_login(made, "/", 0, FRAME_BYTES_MAX, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest");
    amqp_channel_open(made, 1);
    check(made, "channel.open");
    return made;
}

static void declare(amqp_connection_state_t connection) {
    amqp_bytes_t exchange = amqp_cstring_bytes(name);
    if (fanout) {
        amqp_exchange_declare(connection, 1, exchange, amqp_cstring_bytes("fanout"), 0, durable, 0, 0, amqp_empty_table);
        check(connection, "exchange.declare");
    }
    for (int i = 0; i < queues; i++) {
        amqp_bytes_t queue = amqp_cstring_bytes(names[i]);
        amqp_queue_declare(connection, 1, queue, 0, durable, 0, 0, amqp_empty_table);
        check(connection, "queue.declare");
        if (fanout) {
            amqp_queue_bind(connection, 1, queue, exchange, amqp_empty_bytes, amqp_empty_table);
            check(connection, "queue.bind");
        }
    }
}

/* -- publishing ---------------------------------------------------------------------------- */

static amqp_connection_state_t publisher(void) {
    amqp_connection_state_t made = connected();
    if (confirm) {
        amqp_confirm_select(made, 1);
        check(made, "confirm.select");
    }
    return made;
}

static void publish(amqp_connection_state_t connection, long long number) {
    amqp_basic_properties_t properties = {0};
    properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG;
    properties.delivery_mode = persistent ? 2 : 1;
    amqp_bytes_t content = {bytes, body};
    amqp_bytes_t exchange = fanout ? amqp_cstring_bytes(name) : amqp_empty_bytes;
    amqp_bytes_t key = fanout ? amqp_empty_bytes : amqp_cstring_bytes(names[number % queues]);
    int status = amqp_basic_publish(connection, 1, exchange, key, 0, 0, &properties, content);
    if (status) die("basic.publish", amqp_error_string2(status));
}

/* Read confirms until there are no more, or until none is read that must be waited for. */
static long long confirmed(amqp_connection_state_t connection, long long done) {
    amqp_frame_t frame;
    amqp_maybe_release_buffers(connection);
    int status = amqp_simple_wait_frame(connection, &frame);
    if (status) die("confirm", amqp_error_string2(status));
    if (frame.frame_type != AMQP_FRAME_METHOD) return done;
    if (frame.payload.method.id == AMQP_BASIC_ACK_METHOD) {
        amqp_basic_ack_t *ack = frame.payload.method.decoded;
        return ack->multiple ? (long long)ack->delivery_tag : done + 1;
    }
    die("confirm", "something else came");
    return done;
}

static void *publish_all(void *connection) {
    long long done = 0, count = messages / (fanout ? queues : 1);
    for (long long i = 0; i < count; i++) {
        publish(connection, i);
        if (confirm)
            while (i + 1 - done >= confirm) done = confirmed(connection, done);
    }
    while (confirm && done < count) done = confirmed(connection, done);
    return NULL;
}

/* -- consuming ----------------------------------------------------------------------------- */

static amqp_connection_state_t consumer(void) {
    amqp_connection_state_t made = connected();
    if (declares) declare(made);
    if (prefetch) {
        amqp_basic_qos(made, 1, 0, prefetch, 0);
        check(made, "basic.qos");
    }
    return made;
}

static void start_consuming(amqp_connection_state_t connection) {
    for (int i = 0; i < queues; i++) {
        amqp_basic_consume(connection, 1, amqp_cstring_bytes(names[i]), amqp_empty_bytes, 0, !ack_every, 0,
                           amqp_empty_table);
        check(connection, "basic.consume");
    }
}

static void *consume_all(void *connection) {
    long long unacknowledged = 0;
    for (long long seen = 0; seen < messages + skip; seen++) {
        amqp_envelope_t envelope;
        amqp_maybe_release_buffers(connection);
        amqp_rpc_reply_t reply = amqp_consume_message(connection, &envelope, NULL, 0);
        if (reply.reply_type != AMQP_RESPONSE_NORMAL) die("basic.deliver", "nothing came");
        if (skip && seen + 1 == skip) begin();
        if (ack_every && (++unacknowledged == ack_every || seen + 1 == messages + skip)) {
            amqp_basic_ack(connection, 1, envelope.delivery_tag, 1);
            unacknowledged = 0;
        }
        if (envelope.message.body.len != (size_t)bytes) die("basic.deliver", "of another size");
        amqp_destroy_envelope(&envelope);
    }
    end_s = now_s();
    return NULL;
}

static void *time_all(void *connection) {
    while (!is_over) {
        struct timeval patience = {0, 100000};
        amqp_envelope_t envelope;
        amqp_maybe_release_buffers(connection);
        amqp_rpc_reply_t reply = amqp_consume_message(connection, &envelope, &patience, 0);
        if (reply.reply_type != AMQP_RESPONSE_NORMAL) continue;
        long long sent_ns;
        memcpy(&sent_ns, envelope.message.body.bytes, sizeof sent_ns);
        if (counts_from_s && sent_ns / 1e9 >= counts_from_s && latencies < LATENCIES_MAX)
            latencies_ns[latencies++] = now_ns() - sent_ns;
        amqp_destroy_envelope(&envelope);
    }
    return NULL;
}

/* -- modes --------------------------------------------------------------------------------- */

static int compare(const void *one, const void *other) {
    long long a = *(const long long *)one, b = *(const long long *)other;
    return (a > b) - (a < b);
}

static void latency(void) {
    pthread_t thread;
    amqp_connection_state_t in = consumer(), out = publisher();
    latencies_ns = malloc(sizeof(long long) * LATENCIES_MAX);
    start_consuming(in);
    pthread_create(&thread, NULL, time_all, in);
    double first = now_s(), end = first + warm_up + seconds;
    long long sent = 0;
    for (double now = now_s(); now < end; now = now_s()) {
        if (!counts_from_s && now - first >= warm_up) {
            begin();
            counts_from_s = now;
        }
        for (long long due = (now - first) * rate; sent < due; sent++) {
            long long at_ns = now_ns();
            memcpy(body, &at_ns, sizeof at_ns);
            publish(out, sent);
        }
        usleep(100);
    }
    usleep(500000);
    is_over = 1;
    pthread_join(thread, NULL);
    if (!latencies) die("latency", "nothing came");
    qsort(latencies_ns, latencies, sizeof *latencies_ns, compare);
    printf("end {\"messages\": %d, \"seconds\": %.3f, \"cpu_s\": 0, \"p50_us\": %lld, \"p99_us\": %lld, \"p999_us\": "
           "%lld}\n",
           latencies, seconds, latencies_ns[latencies / 2] / 1000, latencies_ns[(int)(latencies * 0.99)] / 1000,
           latencies_ns[(int)(latencies * 0.999)] / 1000);
}

static void run(int publishes, int consumes) {
    pthread_t threads[2];
    amqp_connection_state_t in = consumer(), out = publishes ? publisher() : NULL;
    if (!skip) begin();
    if (consumes) start_consuming(in);
    if (publishes) pthread_create(&threads[0], NULL, publish_all, out);
    if (consumes) pthread_create(&threads[1], NULL, consume_all, in);
    if (publishes) pthread_join(threads[0], NULL);
    if (!consumes || (publishes && confirm)) end_s = now_s();
    if (consumes) pthread_join(threads[1], NULL);
    printf("end {\"messages\": %lld, \"seconds\": %.6f, \"cpu_s\": %.6f}\n", messages, end_s - begin_s,
           cpu_s() - begin_cpu_s);
}

static void set(const char *setting, const char *value) {
    struct { const char *name; int *number; } numbers[] = {
        {"queues", &queues}, {"fanout", &fanout}, {"durable", &durable}, {"persistent", &persistent},
        {"declare", &declares}, {"confirm", &confirm}, {"prefetch", &prefetch}, {"ack", &ack_every}, {"rate", &rate},
    };
    struct { const char *name; long long *number; } longs[] = {{"messages", &messages}, {"skip", &skip}, {"bytes", &bytes}};
    struct { const char *name; double *number; } times[] = {{"seconds", &seconds}, {"warm_up", &warm_up}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(setting, numbers[i].name)) { *numbers[i].number = atoi(value); return; }
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++)
        if (!strcmp(setting, longs[i].name)) { *longs[i].number = atoll(value); return; }
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!strcmp(setting, times[i].name)) { *times[i].number = atof(value); return; }
    if (strcmp(setting, "name")) die(setting, "no such setting");
    name = value;
}

int main(int count, char **words) {
    if (count < 3) die("usage", "amqp_client MODE PORT [NAME=VALUE ...]");
    port = atoi(words[2]);
    for (int i = 3; i < count; i++) {
        char *value = strchr(words[i], '=');
        if (!value) die(words[i], "not NAME=VALUE");
        *value = 0;
        set(words[i], value + 1);
    }
    body = calloc(1, bytes + 16);
    names = malloc(sizeof(char *) * queues);
    for (int i = 0; i < queues; i++) {
        names[i] = malloc(strlen(name) + 12);
        sprintf(names[i], "%s%d", name, i);
    }
    if (!strcmp(words[1], "flow")) run(1, 1);
    else if (!strcmp(words[1], "fill")) run(1, 0);
    else if (!strcmp(words[1], "drain")) run(0, 1);
    else if (!strcmp(words[1], "latency")) latency();
    else die(words[1], "no such mode");
    fflush(stdout);
    _exit(0); /* What is on the way ends with the process: no farewell is measured. */
}

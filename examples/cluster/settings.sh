# What the scripts of this folder share. Each value can be set in the environment.
set -eu
ONELOG=${ONELOG:-onelog}
DATA=${DATA:-cluster-data}
NAME=${NAME:-broker-a}
REPLICAS=${REPLICAS:-3}
ACK=${ACK:-majority}
FIRST_PORT=${FIRST_PORT:-10911}                     # node N: FIRST_PORT + 10 N, and the next one for followers
FIRST_KAFKA_PORT=${FIRST_KAFKA_PORT:-9092}          # node N: FIRST_KAFKA_PORT + N
FIRST_NAMESERVER_PORT=${FIRST_NAMESERVER_PORT:-9876}
FIRST_ETCD_PORT=${FIRST_ETCD_PORT:-2379}            # member N: FIRST_ETCD_PORT + 10 N, and the next one for its peers
MORE=${MORE:-}                                      # more options of every node, such as: --set store.flush=sync

mkdir -p "$DATA"
ETCD= MEMBERS= NAMESERVERS=
for n in 0 1 2; do
    ETCD="${ETCD:+$ETCD;}127.0.0.1:$((FIRST_ETCD_PORT + 10 * n))"
    MEMBERS="${MEMBERS:+$MEMBERS,}etcd-$n=http://127.0.0.1:$((FIRST_ETCD_PORT + 10 * n + 1))"
    NAMESERVERS="${NAMESERVERS:+$NAMESERVERS;}127.0.0.1:$((FIRST_NAMESERVER_PORT + n))"
done
export ONELOG_NAMESERVER=$NAMESERVERS ONELOG_REPLICATION_ETCD=$ETCD

# run NAME COMMAND...: in the background, with its output in NAME.log and its process id in NAME.pid
run() {
    name=$1
    shift
    if [ -f "$DATA/$name.pid" ] && kill -0 "$(cat "$DATA/$name.pid")" 2>/dev/null; then
        echo "$name runs already"
        return
    fi
    nohup "$@" >>"$DATA/$name.log" 2>&1 </dev/null &
    echo $! >"$DATA/$name.pid"
    echo "$name started, process $!"
}

# stop NAME: ask it to end, and wait until it has
stop() {
    [ -f "$DATA/$1.pid" ] || return 0
    pid=$(cat "$DATA/$1.pid")
    kill "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    rm -f "$DATA/$1.pid"
    echo "$1 stopped"
}

start_etcd() {
    client="http://127.0.0.1:$((FIRST_ETCD_PORT + 10 * $1))"
    peer="http://127.0.0.1:$((FIRST_ETCD_PORT + 10 * $1 + 1))"
    run "etcd-$1" etcd --name "etcd-$1" --data-dir "$DATA/etcd-$1" --log-level warn \
        --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "$MEMBERS" --initial-cluster-token onelog-example \
        --auto-compaction-mode revision --auto-compaction-retention 1000
}

start_nameserver() {
    run "nameserver-$1" "$ONELOG" nameserver --port $((FIRST_NAMESERVER_PORT + $1)) --data "$DATA/nameserver-$1"
}

# shellcheck disable=SC2086
start_node() {
    run "node-$1" "$ONELOG" broker --name "$NAME" --id "$1" --etcd "$ETCD" --replicas "$REPLICAS" --ack "$ACK" \
        --port $((FIRST_PORT + 10 * $1)) --set kafka.port=$((FIRST_KAFKA_PORT + $1)) \
        --nameservers "$NAMESERVERS" --data "$DATA/node-$1" --verbose $MORE
}

# wait_for NODE: until it is in sync
wait_for() {
    "$ONELOG" cluster join "$1" --broker "$NAME" --replicas "${2:-$REPLICAS}"
}

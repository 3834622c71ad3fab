#!/bin/sh
# Three etcds, three name servers and three nodes of one broker, as processes of this machine.
. "$(dirname "$0")/settings.sh"
if ! command -v etcd >/dev/null; then
    echo "etcd is missing. On Debian or Ubuntu: apt-get install etcd-server" >&2
    exit 1
fi
for n in 0 1 2; do start_etcd $n; done
for n in 0 1 2; do start_nameserver $n; done
for n in 0 1 2; do start_node $n; done
for n in 0 1 2; do wait_for $n; done
"$ONELOG" cluster status

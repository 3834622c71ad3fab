#!/bin/sh
# Stop everything. The files stay: ./start.sh goes on with them.
. "$(dirname "$0")/settings.sh"
for file in "$DATA"/node-*.pid "$DATA"/nameserver-*.pid "$DATA"/etcd-*.pid; do
    [ -f "$file" ] && stop "$(basename "$file" .pid)"
done

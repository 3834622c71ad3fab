#!/bin/sh
# Restart every node, one after the other, while clients go on: for a new version, or new settings.
# Followers first, the master last, so that there is one hand-over only.
. "$(dirname "$0")/settings.sh"
master=$("$ONELOG" cluster status --json | sed -n '/"role": "master"/{x;s/.*: \([0-9]*\).*/\1/p;q};/"node":/h')
others=$(for file in "$DATA"/node-*.pid; do basename "$file" .pid; done | sed 's/node-//' | grep -vx "$master")
count=$(echo $others $master | wc -w)
for n in $others $master; do
    "$ONELOG" cluster drain "$n" --broker "$NAME"  # Hands over, if it is the master; nobody waits for it then.
    stop "node-$n"
    start_node "$n"
    wait_for "$n" "$count"                         # Not two at a time: the next one waits until this one is in sync.
done
"$ONELOG" cluster status

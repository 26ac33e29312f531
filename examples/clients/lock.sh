#!/bin/sh
# Runs a command while it holds a lock, through the lock API of `eldest serve`. Needs Linux and curl.
#
#     lock.sh RESOURCE COMMAND [ARGUMENT...]
#
# Variables: ELDEST_NODE (http://127.0.0.1:8470), WAIT_MS (0), ELDEST_HTTP_TOKEN (if the node has one). RESOURCE is
# written as in an address: a slash stands for itself. The command finds the fencing token in ELDEST_FENCING_TOKEN. The lock is ours for
# ten seconds after each renewal that was answered, counted from before it was sent; after six to seven without one, and
# no more than a renewal's two later, the command is killed.
# Ends with the command's own code; 75: the lock was not free in time, 74: it was lost, 69: no node answered.
set -u

node=${ELDEST_NODE:-http://127.0.0.1:8470}
resource=$1
shift

# Whole ones, by a clock that goes on while the machine is suspended.
seconds() {
    cut -d. -f1 /proc/uptime
}

# METHOD PATH SECONDS [more]: the answer's body, then its status on a line of its own. The token is read from a file
# descriptor, so that no other user sees it among curl's arguments.
ask() {
    method=$1 path=$2 limit=$3
    shift 3
    printf 'header = "Authorization: Bearer %s"\n' "${ELDEST_HTTP_TOKEN:-}" |
        curl -sS -K - -X "$method" -m "$limit" -w '\n%{http_code}' "$@" "$node/v1/locks/$path"
}

# What a field of the flat object on stdin holds.
field() {
    sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}

wait_ms=${WAIT_MS:-0}
asked=$(seconds)
answer=$(ask POST "$resource" $((wait_ms / 1000 + 10)) -H 'Content-Type: application/json' \
    -d "{\"owner\": \"shell $$\", \"wait_ms\": $wait_ms, \"ttl_ms\": 10000}") || exit 69
case $answer in
*201) ;;
*409) echo "$answer" >&2; exit 75 ;;
*) echo "$answer" >&2; exit 69 ;;
esac
lock=$(echo "$answer" | field lock)
ELDEST_FENCING_TOKEN=$(echo "$answer" | field fencing_token)
export ELDEST_FENCING_TOKEN

# While others held it we only waited: the time that counts begins with the first renewal.
renewed=$((asked - 10))
renew() {
    asked=$(seconds)
    case $(ask PUT "$resource/$lock/renew" 2 2>/dev/null) in
    *200) renewed=$asked ;;
    *404 | *410) renewed=$((asked - 10)) ;;
    esac
}
held() {
    [ $(($(seconds) - renewed)) -lt 6 ]
}

renew
held || { echo "the lock was lost" >&2; exit 74; }
"$@" &
program=$!
trap 'kill "$program" 2>/dev/null' TERM INT
while kill -0 "$program" 2>/dev/null; do
    if ! held; then
        kill -KILL "$program" 2>/dev/null
        wait "$program"
        echo "the lock was lost" >&2
        exit 74
    fi
    sleep 0.2
    [ $(($(seconds) - renewed)) -lt 2 ] || renew
done
wait "$program"
code=$?
ask DELETE "$resource/$lock" 10 >/dev/null 2>&1
exit "$code"

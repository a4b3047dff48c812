#!/usr/bin/env bash
# `make demo`: two Linux hosts talk through the router; every step is checked, everything is
# removed at the end. KEEP=1 leaves it running and says what to try.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/two-hosts.sh

TURNPIKE=${TURNPIKE:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/turnpike}
ROUTES=500000
SECONDS_EACH=5
DIR='' ROUTER_PID='' SERVER_PID='' MADE=()

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
fail() {
    printf '\n\033[31mFAILED: %s\033[0m\n' "$*" >&2
    exit 1
}
indent() { sed 's/^/   /'; }

# step WHAT COMMAND...: runs a command, prints its output, ends the demo if it fails.
step() {
    local what=$1 said=$DIR/said
    shift
    printf '\n-- %s\n' "$what"
    "$@" >"$said" 2>&1 || { indent <"$said"; fail "$what"; }
    indent <"$said"
}

clean_up() {
    local status=$?
    trap '' INT TERM
    [ -n "$SERVER_PID" ] && end_process "$SERVER_PID" || true
    if [ -n "$ROUTER_PID" ]; then
        # A router that does not end cleanly is a failure as well.
        end_process "$ROUTER_PID" || [ "$status" -ne 0 ] || status=1
        if [ "$status" -eq 0 ]; then
            tail -n 3 "$DIR/log" | indent
        elif [ "$status" -ne 130 ]; then
            echo "the router's log:" >&2
            indent <"$DIR/log" >&2
        fi
    fi
    remove_hosts
    [ -z "$DIR" ] || rm -rf "$DIR"
    exit "$status"
}

# --- the parts ------------------------------------------------------------------------------------

start_router() {
    # The example, with its table switched on.
    sed -E 's/^-- (turnpike.import )/\1/' examples/two-hosts.lua >"$DIR/router.lua"
    # On a machine with one core there is no core 1 to choose.
    [ "$(nproc)" -gt 1 ] || sed -i '/^turnpike.forwarders/d' "$DIR/router.lua"
    grep -vE '^(--|$)' "$DIR/router.lua" | indent
    # Not by `on`: $! must be the router itself, not a shell around it.
    ip netns exec "$ROUTER" "$TURNPIKE" run "$DIR/router.lua" --socket "$DIR/sock" >"$DIR/log" 2>&1 &
    ROUTER_PID=$!
    router_is_up() { grep -q ready "$DIR/log" || ! kill -0 "$ROUTER_PID" 2>/dev/null; }
    wait_until 60 router_is_up && kill -0 "$ROUTER_PID" 2>/dev/null || fail "the router did not start"
    echo
    indent <"$DIR/log"
}

show() { "$TURNPIKE" show "$@" --socket "$DIR/sock"; }

# ping_all TARGET: all five echo requests must be answered, including the first.
ping_all() {
    local said
    said=$(on "$LEFT" ping -n -c 5 -i 0.2 -W 2 "$1")
    echo "$said"
    grep -q ' 0% packet loss' <<<"$said"
}

# trace TARGET HOP: the path to the target must be the router, then the target, and nothing else.
trace() {
    local said hops
    said=$(on "$LEFT" traceroute -n -q 1 -w 2 -m 5 "$1")
    echo "$said"
    hops=$(awk 'NR > 1 { print $2 }' <<<"$said" | xargs)
    [ "$hops" = "$2 $1" ]
}

# iperf WHAT... : five seconds from left to right; the result line, in Mbit/s, must not be zero.
iperf() {
    local said
    on "$LEFT" iperf3 -c 10.0.2.2 -t "$SECONDS_EACH" -f m "$@" >"$DIR/iperf" || { cat "$DIR/iperf"; return 1; }
    said=$(grep -E 'receiver$' "$DIR/iperf")
    echo "$said"
    awk '{ for (i = 2; i <= NF; i++) if ($i == "Mbits/sec" && $(i - 1) > 1) ok = 1 } END { exit !ok }' <<<"$said"
}

# iperf_udp WHAT...: the same with datagrams at a given rate, of which at most 10 % may be lost.
iperf_udp() {
    iperf -u -b 100M "$@" || return 1
    awk -F '[(%]' '/receiver$/ { if ($(NF - 1) <= 10) ok = 1 } END { exit !ok }' "$DIR/iperf"
}

# The address's longest prefix of the table, found by a search of the whole table.
longest_prefix() {
    zcat "$DIR/table.dat.gz" | awk -F '[./\t]' -v address="$1" '
        BEGIN { split(address, a, "."); want = ((a[1] * 256 + a[2]) * 256 + a[3]) * 256 + a[4]; best = -1 }
        $5 > best {
            size = 2 ^ (32 - $5); first = ((($1 * 256 + $2) * 256 + $3) * 256 + $4)
            if (want >= first && want < first + size) { best = $5; net = $1 "." $2 "." $3 "." $4 "/" $5 }
        }
        END { print net }'
}

# Looks some addresses of the table up; the router's answer must be the longest prefix.
look_up() {
    local address want got
    for address in $(zcat "$DIR/table.dat.gz" | awk -F / 'NR % 99991 == 7 { print $1 }'); do
        want=$(longest_prefix "$address")
        got=$(show route "$address" --json)
        show route "$address"
        grep -qE "\"prefix\": *\"$want\"" <<<"$got" || { echo "expected $want"; return 1; }
    done
}

routes_loaded() { [ "$(show routes --json | grep -oE '"source": *"import"' | wc -l)" -eq "$ROUTES" ]; }

sum_closes() {
    show counters
    show counters --json | grep -qE '"unaccounted": *0\b'
}

# --- the demo --------------------------------------------------------------------------------------

[ "$(id -u)" -eq 0 ] || fail "network namespaces need root: run it as root"
trap clean_up EXIT
trap 'exit 130' INT TERM
DIR=$(mktemp -d /tmp/turnpike-demo.XXXXXX)

say "Two hosts in namespaces of their own, and the router between them"
make_hosts turnpike
ip -n "$LEFT" -br address show eth0 | indent
ip -n "$RIGHT" -br address show eth0 | indent

say "A table of $ROUTES generated routes"
step "turnpike generate-table" "$TURNPIKE" generate-table "$ROUTES" "$DIR/table.dat.gz"

say "The router, from one Lua file"
start_router

say "The hosts reach each other"
step "ping 10.0.2.2" ping_all 10.0.2.2
step "ping -6 fd00:2::2" ping_all fd00:2::2
step "traceroute 10.0.2.2" trace 10.0.2.2 10.0.1.1
step "traceroute -6 fd00:2::2" trace fd00:2::2 fd00:1::1

say "How fast ($SECONDS_EACH s each; hosts, router and measurement share this machine)"
ip netns exec "$RIGHT" iperf3 -s >"$DIR/server" 2>&1 &
SERVER_PID=$!
listening() { on "$RIGHT" ss -Hltn 'sport = 5201' | grep -q .; }
wait_until 10 listening || fail "iperf3 does not listen"
step "TCP, left to right" iperf
step "TCP, right to left" iperf -R
step "UDP at 100 Mbit/s, left to right" iperf_udp
step "UDP at 100 Mbit/s, right to left" iperf_udp -R

say "Half a million routes"
step "all are there" routes_loaded
step "some of them looked up" look_up

say "What the router saw"
step "turnpike show ports" show ports
step "turnpike show neighbours" show neighbours
step "turnpike show counters" sum_closes
step "turnpike show graph" show graph

if [ -n "${KEEP:-}" ]; then
    trap - EXIT INT TERM
    disown "$ROUTER_PID" "$SERVER_PID"
    say "It is left running (KEEP). Try:"
    cat <<TRY
   ip netns exec $LEFT ping 10.0.2.2
   ip netns exec $LEFT iperf3 -c 10.0.2.2
   ip netns exec $RIGHT tcpdump -ni eth0
   $TURNPIKE show counters --socket $DIR/sock
   $TURNPIKE show route 198.51.100.7 --socket $DIR/sock
   $TURNPIKE show graph --format dot --socket $DIR/sock

   And when you have seen enough:
   kill $ROUTER_PID $SERVER_PID; ip netns del $LEFT; ip netns del $ROUTER; ip netns del $RIGHT; rm -r $DIR
TRY
else
    say "All of it worked; now it is removed"
fi

# Two ordinary Linux hosts and a place for the router between them; sourced by the demo and the
# benchmark.
#
#     host left                    router                     host right
#     eth0 10.0.1.2/24 ---- tp-left      tp-right ---- eth0 10.0.2.2/24
#          fd00:1::2/64                                     fd00:2::2/64
#
# Each of the three is a network namespace, so nothing of the machine's own network is touched.
# Sets LEFT, ROUTER and RIGHT, the namespaces' names; everything below goes with them.

# make_hosts PREFIX: makes the namespaces PREFIX-left, PREFIX-router, PREFIX-right.
make_hosts() {
    LEFT=$1-left ROUTER=$1-router RIGHT=$1-right
    local name side
    for name in "$LEFT" "$ROUTER" "$RIGHT"; do
        if [ -e "/run/netns/$name" ]; then
            echo "the network namespace $name exists already; if it is a leftover: ip netns del $name" >&2
            return 1
        fi
    done
    MADE=()
    for name in "$LEFT" "$ROUTER" "$RIGHT"; do
        ip netns add "$name"
        MADE+=("$name")
        ip -n "$name" link set lo up
    done
    for side in left right; do
        ip link add "tp-$side" netns "$ROUTER" type veth peer name eth0 netns "$1-$side"
        ip -n "$ROUTER" link set "tp-$side" up
        ip -n "$1-$side" link set eth0 up
    done
    address_host "$LEFT" 1
    address_host "$RIGHT" 2
}

# address_host NAMESPACE N: gives it 10.0.N.2 and fd00:N::2, and the router as its default.
address_host() {
    ip -n "$1" address add "10.0.$2.2/24" dev eth0
    # nodad: no duplicate address detection, the address can be used at once.
    ip -n "$1" address add "fd00:$2::2/64" dev eth0 nodad
    ip -n "$1" route add default via "10.0.$2.1"
    ip -n "$1" -6 route add default via "fd00:$2::1"
}

# Removes everything that make_hosts made, regardless of its state.
remove_hosts() {
    local name
    for name in "${MADE[@]:-}"; do
        [ -z "$name" ] || ip netns del "$name" 2>/dev/null || true
    done
    MADE=()
}

# on NAMESPACE COMMAND...: runs a command there.
on() {
    local name=$1
    shift
    ip netns exec "$name" "$@"
}

# end_process PID: ends a process that this shell started, and waits for it; its exit status.
end_process() {
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null
}

# wait_until SECONDS COMMAND...: until the command succeeds; false if it never does.
wait_until() {
    local tries=$(($1 * 20))
    shift
    while ! "$@"; do
        [ $((tries--)) -gt 0 ] || return 1
        sleep 0.05
    done
}

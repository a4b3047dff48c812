#!/usr/bin/env bash
# Three Turnpike routers with FRR, OSPF and OSPFv3 between them, and a host at either end: shows the
# routes, the ways packets take, and how a lost link is driven around. Everything is in network
# namespaces and is removed at the end. KEEP=1 leaves it running and says what to try.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# on, end_process, wait_until
. "$here/../../scripts/two-hosts.sh"

TURNPIKE=${TURNPIKE:-$here/../../target/release/turnpike}
FRR=/usr/lib/frr
NAME=three-routers
DIR='' ROUTERS=() DAEMONS=() MADE=()

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
indent() { sed 's/^/   /'; }
fail() {
    printf '\n\033[31mFAILED: %s\033[0m\n' "$*" >&2
    exit 1
}

clean_up() {
    local status=$? pid n
    trap '' INT TERM
    for pid in "${DAEMONS[@]:-}"; do [ -z "$pid" ] || end_process "$pid" || true; done
    for pid in "${ROUTERS[@]:-}"; do
        # A router that does not end cleanly is a failure as well.
        [ -z "$pid" ] || end_process "$pid" || [ "$status" -ne 0 ] || status=1
    done
    if [ "$status" -ne 0 ] && [ "$status" -ne 130 ]; then
        for n in 1 2 3; do
            [ -e "$DIR/r$n.log" ] && { echo "the log of router $n:"; tail -n 30 "$DIR/r$n.log" | indent; } >&2
        done
    fi
    remove_hosts
    [ -z "$DIR" ] || rm -rf "$DIR"
    exit "$status"
}

# --- the parts ------------------------------------------------------------------------------------

# space NAME: a namespace.
space() {
    [ ! -e "/run/netns/$NAME-$1" ] ||
        fail "the network namespace $NAME-$1 exists already; if it is a leftover: ip netns del $NAME-$1"
    ip netns add "$NAME-$1"
    MADE+=("$NAME-$1")
    ip -n "$NAME-$1" link set lo up
}

# wire SPACE INTERFACE SPACE INTERFACE: a cable between two of them.
wire() {
    ip link add "$2" netns "$NAME-$1" type veth peer name "$4" netns "$NAME-$3"
    ip -n "$NAME-$1" link set "$2" up
    ip -n "$NAME-$3" link set "$4" up
}

# end_host NAME N: the host's address in its router's network, and the router as its default.
end_host() {
    ip -n "$NAME-$1" address add "10.$2.0.2/24" dev eth0
    ip -n "$NAME-$1" address add "fd0$2::2/64" dev eth0 nodad
    ip -n "$NAME-$1" route add default via "10.$2.0.1"
    ip -n "$NAME-$1" -6 route add default via "fd0$2::1"
}

# start_router N: Turnpike, then FRR's daemons beside it, as on any Linux router.
start_router() {
    local n=$1 dir=$DIR/r$1 daemon
    ip netns exec "$NAME-r$n" "$TURNPIKE" run "$here/r$n.lua" --socket "$DIR/r$n.sock" >"$DIR/r$n.log" 2>&1 &
    ROUTERS+=($!)
    router_is_up() { grep -q ready "$DIR/r$n.log" || ! kill -0 "${ROUTERS[-1]}" 2>/dev/null; }
    wait_until 60 router_is_up && kill -0 "${ROUTERS[-1]}" 2>/dev/null || fail "router $n did not start"
    mkdir "$dir"
    cp "$here/r$n.frr.conf" "$dir/frr.conf"
    touch "$dir/vtysh.conf" "$dir/none.conf"
    chown -R frr:frr "$dir"
    for daemon in zebra ospfd ospf6d; do
        ip netns exec "$NAME-r$n" "$FRR/$daemon" --vty_socket "$dir" -z "$dir/zserv.api" -i "$dir/$daemon.pid" \
            -f "$dir/none.conf" -P 0 --log "file:$dir/$daemon.log" >"$dir/$daemon.out" 2>&1 &
        DAEMONS+=($!)
        daemon_is_up() { vty "$n" -d "$daemon" -c 'show version' >/dev/null 2>&1; }
        wait_until 20 daemon_is_up || { cat "$dir/$daemon".{out,log} >&2; fail "$daemon of router $n did not start"; }
    done
    vty "$n" -b >"$dir/vtysh.out" 2>&1 || { cat "$dir/vtysh.out" >&2; fail "FRR's configuration of router $n"; }
}

vty() {
    local n=$1
    shift
    vtysh --vty_socket "$DIR/r$n" --config_dir "$DIR/r$n" "$@"
}

show() {
    local n=$1
    shift
    "$TURNPIKE" show "$@" --socket "$DIR/r$n.sock"
}

# hops ADDRESS COUNT: the number of routers between, determined by the answer's TTL.
hops() {
    [ "$(on "$NAME-a" ping -n -c 1 -W 1 "$1" | sed -nE 's/.*ttl=([0-9]+).*/\1/p')" = $((64 - $2)) ]
}

# --- the example ----------------------------------------------------------------------------------

[ "$(id -u)" -eq 0 ] || fail "network namespaces need root: run it as root"
[ -x "$TURNPIKE" ] || fail "$TURNPIKE is missing: run \`make build\`, or say TURNPIKE=FILE"
[ -x "$FRR/ospfd" ] && command -v vtysh >/dev/null || fail "FRR is missing: apt-get install frr"
trap clean_up EXIT
trap 'exit 130' INT TERM
DIR=$(mktemp -d /tmp/turnpike-example.XXXXXX)
chmod 755 "$DIR"

say "Two hosts, three routers, and the wires between them"
for name in a r1 r2 r3 c; do space "$name"; done
wire a eth0 r1 wire-hosts
wire r1 wire-to2 r2 wire-to1
wire r2 wire-to3 r3 wire-to2
wire r1 wire-to3 r3 wire-to1
wire r3 wire-hosts c eth0
end_host a 1
end_host c 3
awk '/^```/ { block++; next } block == 1' "$here/README.md" | indent

say "Turnpike and FRR start, three times"
for n in 1 2 3; do
    start_router "$n"
    grep ready "$DIR/r$n.log" | indent
done

say "OSPF finds the ways"
for address in 10.3.0.2 fd03::2; do
    wait_until 60 hops "$address" 2 || fail "no way from host a to $address by two routers"
done
vty 1 -c 'show ip ospf neighbor' | indent

say "The first router's routes: FRR's, the kernel's, Turnpike's"
vty 1 -c 'show ip route ospf' | grep '^O' | indent
echo
ip -n "$NAME-r1" route show proto ospf | indent
echo
show 1 routes | indent

say "From host a to host c"
on "$NAME-a" ping -n -c 3 -i 0.2 10.3.0.2 | indent
on "$NAME-a" ping -n -c 3 -i 0.2 fd03::2 | indent
on "$NAME-a" traceroute -n -q 1 -w 2 10.3.0.2 | indent

say "The link between the first and the third router is cut; packets go by the second"
ip -n "$NAME-r1" link set wire-to3 down
for address in 10.3.0.2 fd03::2; do
    wait_until 30 hops "$address" 3 || fail "no way from host a to $address by three routers"
done
on "$NAME-a" traceroute -n -q 1 -w 2 10.3.0.2 | indent
show 1 route 10.3.0.2 | indent
ip -n "$NAME-r1" link set wire-to3 up
for address in 10.3.0.2 fd03::2; do
    wait_until 60 hops "$address" 2 || fail "the way to $address is not back"
done

if [ -n "${KEEP:-}" ]; then
    trap - EXIT INT TERM
    disown "${ROUTERS[@]}" "${DAEMONS[@]}"
    say "It is left running (KEEP). Try:"
    cat <<TRY
   ip netns exec $NAME-a ping 10.3.0.2
   vtysh --vty_socket $DIR/r1 --config_dir $DIR/r1
   ip netns exec $NAME-r1 tcpdump -ni to3
   $TURNPIKE show routes --socket $DIR/r1.sock
   $TURNPIKE show sources --socket $DIR/r1.sock

   And when you have seen enough:
   kill ${DAEMONS[*]} ${ROUTERS[*]}; for n in ${MADE[*]}; do ip netns del \$n; done; rm -r $DIR
TRY
else
    say "All of it worked; now it is removed"
fi

#!/usr/bin/env bash
# What scripts/test-deb.sh --upgrade does in the chroot: installs an earlier version, upgrades it while a numbered stream
# passes its router, and starts the router again as the unit does. Prints the packets that this costs.
set -euo pipefail
RATE=2000 SECONDS_OF_TRAFFIC=30

fail() {
    echo "the upgrade: $*" >&2
    exit 1
}

. "$(dirname "$0")/test-deb-common.sh"

version() { dpkg-query --show --showformat '${Version}' turnpike; }
mac() { ip netns exec "$1" cat "/sys/class/net/$2/address"; }
received() { turnpike show counters --json | sed -n 's/^ *"received": \([0-9]*\).*/\1/p'; }
has_received() { [ "$(received)" -ge "$1" ]; }

# number KEY: from the generator's report.
number() { sed -n "s/^ *\"$1\": \([0-9]*\).*/\1/p" /tmp/stream.json | head -n 1; }

apt_get update
apt_get install --no-install-recommends iproute2 /packages/earlier.deb
earlier=$(version)
two_networks
# The generator has both ends.
ip -n right link set eth0 down
ip -n right link set eth0 name sink netns left
ip -n left link set sink up
two_ports $CONFIG
echo "turnpike.neighbour \"10.0.2.2\" { port = \"right\", mac = \"$(mac left sink)\" }" >>$CONFIG
start $CONFIG

ip netns exec left turnpike generate --device eth0 --receive sink --to-mac "$(cat /sys/class/net/tp-left/address)" \
    --from 10.0.1.2 --to 10.0.2.2 --rate ${RATE}pps --seconds $SECONDS_OF_TRAFFIC --full lose --no-huge --json \
    >/tmp/stream.json 2>/tmp/stream.log &
stream=$!
wait_for 30 has_received $RATE || fail "no stream: $(cat /tmp/stream.log /tmp/log)"

apt_get install /packages/turnpike.deb
[ "$(version)" != "$earlier" ] || fail "the version is still $earlier"
stop
start $CONFIG
has_passed() { [ "$(received)" -ge $RATE ]; }
wait_for 30 has_passed || fail "the router forwards nothing after the upgrade: $(cat /tmp/log)"

wait "$stream" || fail "the stream: $(cat /tmp/stream.log)"
sent=$(number sent) lost=$(number lost)
[ "$lost" -lt $((sent / 2)) ] || fail "$lost of $sent packets lost: $(cat /tmp/stream.json)"
stop
echo "upgrade under traffic, $earlier to $(version): $lost of $sent packets lost, $((lost * 1000 * SECONDS_OF_TRAFFIC / sent)) ms at $((sent / SECONDS_OF_TRAFFIC)) packets/s"

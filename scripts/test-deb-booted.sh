#!/usr/bin/env bash
# What scripts/test-deb.sh does in a virtual machine with the package, systemd being process 1: the router's life as a
# service, in the sandbox of its unit.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

fail() {
    echo "the service: $*" >&2
    systemctl status --no-pager --lines=0 turnpike || true
    journalctl --no-pager --output=cat -n 60 -u turnpike || true
    exit 1
}

. "$(dirname "$0")/test-deb-common.sh"

property() { systemctl show --value --property "$1" turnpike; }
pings() { ip netns exec left ping -q -c 3 -i 0.2 -W 5 "${1:-10.0.2.2}" >/dev/null; }
forwards() { wait_for 30 pings || fail "$1: no answer through the router"; }
# With its own process id, other than before.
is_restarted() { systemctl is-active turnpike && [ "$(property MainPID)" != "$1" ] && [ "$(property MainPID)" != 0 ]; }

two_networks
ip netns add apart

echo "the configuration as it is installed"
systemctl start turnpike || fail "it does not start"
[ "$(property StatusText)" = "1 port, 5 IPv4 and 4 IPv6 routes; configuration 1" ] || fail "status: $(property StatusText)"
systemctl stop turnpike

echo "two ports by AF_XDP, with host interfaces in another namespace"
mkdir -p /etc/systemd/system/turnpike.service.d
for drop_in in af-xdp namespaces; do
    cp "/usr/share/doc/turnpike/examples/systemd/turnpike.service.d/$drop_in.conf" /etc/systemd/system/turnpike.service.d/
done
systemctl daemon-reload
cat >$CONFIG <<'LUA'
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = "10.0.1.1/24", host = { netns = "apart" } }
turnpike.port "right" { device = "tp-right", address = "10.0.2.1/24", host = { netns = "apart" } }
turnpike.routes_from { "kernel" }
LUA
systemctl enable --now turnpike || fail "it does not start"
[ -e /etc/systemd/system/multi-user.target.wants/turnpike.service ] || fail "it is not enabled"
forwards "after the start"
journalctl --output=cat -u turnpike | grep -q 'tp-left by net_af_xdp' || fail "no AF_XDP in the sandbox"
ip -n apart link show right | grep -q LOWER_UP || fail "no host interface in the namespace"
carrier_losses() { ip netns exec apart cat /sys/class/net/left/carrier_down_count; }
! journalctl --output=cat -u turnpike | grep -iE 'not permitted|denied|read-only' || fail "the sandbox is too narrow"

echo "the sandbox"
pid=$(property MainPID)
grep -q '^NoNewPrivs:.*1$' "/proc/$pid/status" && grep -q '^Seccomp:.*2$' "/proc/$pid/status" || fail "no filter of system calls"
bounding=$(sed -n 's/^CapBnd:\t*//p' "/proc/$pid/status")
[ $((0x$bounding)) -eq $((1 << 12 | 1 << 13 | 1 << 14 | 1 << 21)) ] || fail "capabilities: $bounding"
! nsenter --target "$pid" --mount touch /usr/written 2>/dev/null || fail "/usr is writable"
[ -z "$(nsenter --target "$pid" --mount ls -A /root 2>/dev/null)" ] || fail "/root is readable"
[ "$(stat -c %a /run/turnpike.sock)" = 600 ] || fail "mode of the socket"

echo "reload"
echo 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }' >>$CONFIG
systemctl reload turnpike || fail "reload is refused"
turnpike show route 198.51.100.1 | grep -q 10.0.2.2 || fail "the route is not there"
[ "$(property MainPID)" = "$pid" ] || fail "reload has restarted it"
wait_for 10 test "$(property SubState)" = running || fail "state after a reload: $(property SubState)"
cp $CONFIG /root/good.lua
echo 'nonsense' >>$CONFIG
! systemctl reload turnpike 2>/dev/null || fail "a broken file is not refused"
cp /root/good.lua $CONFIG
systemctl is-active turnpike >/dev/null || fail "it ended over a broken file"
forwards "after reloads"

echo "kill -9"
carrier=$(carrier_losses)
kill -9 "$pid"
wait_for 30 is_restarted "$pid" || fail "it is not started again"
forwards "after kill -9"
[ "$(carrier_losses)" = "$carrier" ] || fail "the host interface lost its carrier"

echo "the watchdog"
mkdir -p /run/systemd/system/turnpike.service.d
printf '[Service]\nWatchdogSec=10\n' >/run/systemd/system/turnpike.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart turnpike
pid=$(property MainPID)
sleep 15
[ "$(property MainPID)" = "$pid" ] || fail "the watchdog ended a router that lives"
kill -STOP "$pid"
wait_for 60 is_restarted "$pid" || fail "the watchdog does not end a router that hangs"
forwards "after the watchdog"

echo "an upgrade"
pid=$(property MainPID)
dpkg --force-confold --install /packages/next.deb >/root/dpkg.log 2>&1 || fail "upgrade: $(cat /root/dpkg.log)"
wait_for 30 is_restarted "$pid" || fail "an upgrade does not start it again"
cmp -s $CONFIG /root/good.lua || fail "the configuration is not the operator's any more"
forwards "after the upgrade"

echo "purge"
dpkg --purge turnpike >/root/dpkg.log 2>&1 || fail "purge: $(cat /root/dpkg.log)"
! pgrep -x turnpike >/dev/null || fail "it runs after its removal"
[ ! -e /run/turnpike.sock ] && [ ! -e /var/lib/turnpike ] && [ ! -e /etc/turnpike/turnpike.lua ] || fail "files are left"
echo "the service passes"

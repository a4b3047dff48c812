#!/usr/bin/env bash
# What scripts/test-deb.sh does in the chroot.
set -euo pipefail

fail() {
    echo "the package: $*" >&2
    exit 1
}

. "$(dirname "$0")/test-deb-common.sh"
SOCKET=/run/turnpike.sock

# Everything with the package's name, but what apt and dpkg keep of all packages.
remains() {
    find / -xdev -name '*turnpike*' ! -path '/proc/*' ! -path '/packages/*' ! -path '/var/lib/dpkg/*' | sort
}

apt_get update
[ -z "$(remains)" ] || fail "there is something before: $(remains)"
apt_get install --no-install-recommends /packages/turnpike.deb

echo "files"
getent group turnpike >/dev/null || fail "there is no group turnpike"
modes=$(stat -c '%a %U:%G %n' /usr/bin/turnpike $CONFIG /etc/turnpike)
[ "$modes" = "755 root:root /usr/bin/turnpike
644 root:root $CONFIG
755 root:root /etc/turnpike" ] || fail "modes: $modes"
unit=$(dpkg -L turnpike | grep 'system/turnpike.service$')
[ -e "$unit" ] || fail "there is no unit"
extcap=$(dpkg -L turnpike | grep 'wireshark/extcap/turnpike$')
"$extcap" --extcap-interfaces 2>/dev/null | grep -q '^extcap {' || fail "Wireshark's program: $("$extcap" --extcap-interfaces 2>&1)"
[ ! -e /etc/systemd/system/multi-user.target.wants/turnpike.service ] || fail "the unit is enabled by itself"
! dpkg -L turnpike | xargs stat -c '%A %n' | grep -E '^-.{7}w|^-..s|^-.{5}s' || fail "a file has such a mode"

echo "the configuration as it is installed"
turnpike check $CONFIG
start $CONFIG
turnpike show ports | grep -q '^ none ' || fail "show ports: $(turnpike show ports)"
stop

echo "a router between two networks"
apt_get install --no-install-recommends iproute2 iputils-ping
two_networks
two_ports /tmp/two.lua
start /tmp/two.lua
ip netns exec left ping -q -c 3 -i 0.2 -W 5 10.0.2.2 || fail "no answer through the router: $(cat /tmp/log)"
stop
ip netns del left
ip netns del right

echo "an upgrade"
sed -i 's/port "none"/port "mine"/' $CONFIG
cp $CONFIG /tmp/mine.lua
mkdir -p /var/lib/turnpike/quarantine
apt_get install /packages/next.deb
cmp $CONFIG /tmp/mine.lua || fail "the operator's configuration is gone"
[ -e $CONFIG.dpkg-dist ] || fail "the next version's configuration is not beside it"
turnpike check $CONFIG

echo "removal"
apt_get remove turnpike
[ -e $CONFIG ] || fail "the configuration went with the package"
[ ! -e /usr/bin/turnpike ] || fail "the program is still there"
apt_get purge turnpike
[ -z "$(remains)" ] || fail "left behind: $(remains)"
[ ! -e $SOCKET ] || fail "left behind: $SOCKET"

#!/bin/sh
# The program of a container: FRR and Turnpike, each if it is configured. When Turnpike ends, for an upgrade, it starts anew.
set -eu
lua=/etc/turnpike/turnpike.lua

# Neighbours' advertisements are for FRR; the kernel would take default routes from them.
sysctl -qw net.ipv6.conf.default.accept_ra=0

# Links are made after the start of a container; containerlab says how many.
links() { ls /sys/class/net | grep -cvx -e lo -e eth0 || true; }
while [ "$(links)" -lt "${CLAB_INTFS:-0}" ]; do sleep 0.2; done

[ ! -s /etc/frr/frr.conf ] || /usr/lib/frr/frrinit.sh start

child=
trap 'kill -TERM $child 2>/dev/null; wait; exit' TERM INT
while :; do
    if [ -e "$lua" ] && [ "${TURNPIKE:-run}" = run ]; then turnpike run "$lua" & else sleep infinity & fi
    child=$!
    wait $child || sleep 1
done

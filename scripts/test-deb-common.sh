# To be sourced by what scripts/test-deb.sh and scripts/test-image.sh run, after a function `fail`.
CONFIG=/etc/turnpike/turnpike.lua

# wait_for SECONDS COMMAND...
wait_for() {
    local tries=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $((tries -= 1)) -gt 0 ] || return 1
        sleep 0.2
    done
}

# two_networks [NAMESPACE PREFIX]: the hosts 10.0.1.2 and 10.0.2.2 in namespaces `left` and `right`, and the devices
# `tp-left` and `tp-right` of a router between them, here or in a namespace. All namespaces have the prefix.
two_networks() {
    local inside=${1:-} prefix=${2:-} side name net
    for side in left:1 right:2; do
        name=${side%:*} net=${side#*:}
        ip netns add "$prefix$name"
        ip ${inside:+-n "$prefix$inside"} link add "tp-$name" type veth peer name eth0 netns "$prefix$name"
        ip ${inside:+-n "$prefix$inside"} link set "tp-$name" up
        ip -n "$prefix$name" link set eth0 up
        ip -n "$prefix$name" addr add "10.0.$net.2/24" dev eth0
        ip -n "$prefix$name" route add default via "10.0.$net.1"
    done
}

# two_ports FILE: the configuration of that router.
two_ports() {
    cat >"$1" <<'LUA'
local turnpike = require "turnpike"
turnpike.port "left"  { device = "tp-left",  address = "10.0.1.1/24" }
turnpike.port "right" { device = "tp-right", address = "10.0.2.1/24" }
turnpike.routes_from { "kernel" }
LUA
}

# start CONFIGURATION [COMMAND...]: a router, until `stop`; its log is /tmp/log.
start() {
    local configuration=$1
    shift
    "$@" turnpike run "$configuration" >/tmp/log 2>&1 &
    router=$!
    wait_for 60 grep -q " ready: " /tmp/log || fail "$configuration: the router is not ready: $(cat /tmp/log)"
}

stop() {
    kill "$router"
    wait "$router" || fail "the router ended with $?: $(cat /tmp/log)"
}

apt_get() {
    apt-get -y -qq -o Dpkg::Options::=--force-confold -o Dpkg::Use-Pty=0 -o Binary::apt-get::APT::Keep-Downloaded-Packages=true \
        "$@" >/tmp/apt.log 2>&1 || fail "apt-get $*: $(tail -n 20 /tmp/apt.log)"
}

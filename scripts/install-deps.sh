#!/usr/bin/env bash
# Installs, with apt-get, what building, testing and the demo need and this machine lacks. Says what
# it installs; does nothing, quickly, when nothing is missing. Rust is the user's business.
set -euo pipefail

# Evidence of a package's presence, and the package: a command, a file, a library or a pkg-config module.
needs=(
    command:cc                  build-essential
    command:pkg-config          pkg-config
    command:clang               clang
    library:libclang            libclang-dev
    module:libdpdk              libdpdk-dev
    command:ip                  iproute2
    command:ping                iputils-ping
    command:traceroute          traceroute
    command:iperf3              iperf3
    command:tcpdump             tcpdump
    command:ethtool             ethtool
    command:nft                 nftables
    command:iptables-save       iptables
    command:bird                bird2
    command:keepalived          keepalived
    command:dnsmasq             dnsmasq-base
    command:promtool            prometheus
    command:nfcapd              nfdump
    command:sfcapd              nfdump-sflow
    command:snmpd               snmpd
    command:snmpwalk            snmp
    command:chromedriver        chromium-driver
    file:/bin/busybox           busybox-static
    command:valgrind            valgrind
    command:strace              strace
    command:man                 man-db
    command:zsh                 zsh
    command:fish                fish
    command:systemd-analyze     systemd
    command:dpdk-testpmd        dpdk-dev
    file:/usr/lib/frr/zebra     frr
    python:ensurepip            python3-venv
    python:jinja2               python3-jinja2
)

present() {
    local kind=${1%%:*} name=${1#*:}
    case $kind in
        command) command -v "$name" >/dev/null ;;
        module) pkg-config --exists "$name" 2>/dev/null ;;
        library) compgen -G "/usr/lib/llvm-*/lib/$name*.so*" >/dev/null ;;
        file) [ -e "$name" ] ;;
        python) python3 -c "import $name" 2>/dev/null ;;
    esac
}

if ! command -v cargo >/dev/null; then
    echo "cargo not found: install Rust 1.88 or newer, see https://www.rust-lang.org/tools/install" >&2
    exit 1
fi

missing=()
for ((i = 0; i < ${#needs[@]}; i += 2)); do
    present "${needs[i]}" || missing+=("${needs[i + 1]}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

exec "$(dirname "$0")/install-packages.sh" "${missing[@]}"

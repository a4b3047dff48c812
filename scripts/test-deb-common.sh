# To be sourced by what scripts/test-deb.sh runs in its systems.
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

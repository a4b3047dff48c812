#!/usr/bin/env bash
# Installs packages with apt-get, or says why it cannot.
#
#   scripts/install-packages.sh PACKAGE...
set -euo pipefail

if ! command -v apt-get >/dev/null; then
    echo "missing, and there is no apt-get to install it with: $*" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "missing: $*; run as root: apt-get install $*" >&2
    exit 1
fi
echo "== installing $*"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@"

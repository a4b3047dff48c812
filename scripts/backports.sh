#!/usr/bin/env bash
# Makes the backports of this release of Debian known to apt, beside the archive of the machine's own sources, which stay as they
# are. Fails if there are none.
#
#   scripts/backports.sh FILE     writes FILE, for apt-get -o Dir::Etc::sourcelist=FILE …
set -euo pipefail

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
# The Debian archive of this release, as apt knows it.
uri=$(apt-get indextargets --format '$(REPO_URI)' \
    'Created-By: Packages' 'Origin: Debian' "Codename: $codename" 'Component: main' | head -n 1)
[ -n "$uri" ] || { echo "apt has no archive of Debian $codename, beside which its backports would be" >&2; exit 1; }
echo "deb $uri $codename-backports main" >"$1"
# Reads the backports' list only, and keeps the other lists.
apt-get update -qq -o "Dir::Etc::sourcelist=$1" -o Dir::Etc::sourceparts=/dev/null -o APT::Get::List-Cleanup=0

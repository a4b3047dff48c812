#!/usr/bin/env bash
# Unpacks files of the sources of the installed libdpdk-dev, of the distribution's source package, which apt-get fetches.
#
#   scripts/dpdk-source.sh DIRECTORY PATTERN...
#
# The patterns are those of tar. Prints the directory that the package's files are in.
set -euo pipefail

work=$1
shift
version=$(dpkg-query -W -f '${source:Version}' libdpdk-dev)
# A separate list of source packages, from the same place as apt's binary packages.
mkdir -p "$work/lists/partial" "$work/sources"
. /etc/os-release
apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 'Created-By: Packages' |
    sort -u | while IFS='|' read -r origin uri release component; do
    [ "${origin,,}" = "$ID" ] || continue
    printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: %s\n\n' "$uri" "$release" "$component"
done >"$work/sources/source.sources"
apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources"
    -o Dir::State::lists="$work/lists" -o APT::Sandbox::User=root)
"${apt[@]}" update >&2
(cd "$work" && "${apt[@]}" source --download-only "dpdk=$version" >&2)
mkdir "$work/unpacked"
tar -xf "$work"/dpdk_*.orig.tar.* -C "$work/unpacked" --wildcards "$@"
echo "$work"/unpacked/*

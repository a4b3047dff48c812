#!/usr/bin/env bash
# A leaf and spine fabric of Turnpike routers with FRR, in network namespaces of this machine:
#
#     run.sh [LEAVES] [SPINES]     default: 3 and 2
#
# Shows ways, load and an anycast service, kills, drains and upgrades routers under traffic, counts what is lost, and
# removes everything. KEEP=1 leaves it running and says what to try. See README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" "$here/tour.py" "$@"

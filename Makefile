# What a newcomer types. Everything but `clean` and `help` first installs what is missing, and says so.
#
#   make demo          two Linux hosts talk through the router (KEEP=1 leaves it running)
#   make test          unit and property tests, then the scenarios in network namespaces
#   make test-long     the same with larger tables, longer repetitions, and many more cases of each property
#   make test-vm       scenarios in a virtual machine with emulated NICs (e1000e, virtio, igb, …), by QEMU
#   make test-debian13 the same on Debian 13, in a chroot: unit tests, and scenarios of forwarding, host
#                      interfaces, FRR and BIRD; before each release
#   make test-dpdk     unit tests with each newer DPDK: 24.11 of Debian 13, 25.11 of Debian 14 (DPDK=25.11: one)
#   make soak          everything at once for three hours, and nothing lost or leaked (HOURS=12: longer)
#   make bench         what forwarding and route lookups cost; writes bench/results/
#   make bench EXP=attack    one experiment of bench/ by itself: apply, attack, bgp, fabric, reroute, restart, vrfs, waiting; filters, moonroute,
#                      kamuee, pc_router, octeon, control_separation, fastclick, latency (these write docs/benchmarks.md, plots too)
#   make bench-peers   beside others on this machine, in one run: l3fwd, VPP, grout and FastClick, built from their
#                      sources where they can be had, and the kernel's forwarding
#   make bench-all     every benchmark and experiment, for docs/benchmarks.md: hours, on a machine that does nothing else
#   make bench-check   instructions per packet, compared with those in bench/instructions.json
#   make bench-record  writes them there, to be committed with the change that explains them
#   make miri          the route tables under miri, with a nightly compiler (takes long)
#   make fuzz          a minute of each fuzz target (FUZZ_SECONDS=600: longer), with a nightly compiler
#   make asan          unit tests and frame scenarios with AddressSanitizer, with a nightly compiler
#   make deb           a Debian package in target/deb/ (BINARY=PATH: of that binary, without compiling)
#   make deb-test      lintian, and installation, upgrade and purge of it in a chroot (BOOT=1: and as a service in a
#                      virtual machine with systemd)
#   make deb-test UPGRADE=1   an upgrade of it under traffic instead: packets lost, and for how long
#   make image         a container image of the package, target/turnpike-image.tar
#   make image-test    runs that image with its capabilities, without control groups
#   make reproducible  builds the package twice, in two directories, and compares (takes long)
#   make licences      checks the licences of all crates by deny.toml
#   make check-arm64   compiles the crates that need no DPDK for arm64, without linking
#   make lint          formatting and lints, warnings are errors; types of the dashboard's scripts
#   make build         target/release/turnpike

CARGO  ?= cargo
PYTHON := .venv/bin/python
# Options for pytest: make scenarios PYTEST="-k ecmp -x"
PYTEST ?=

.DEFAULT_GOAL := build
.PHONY: soak check-arm64 deb deb-test image image-test reproducible licences
.PHONY: build demo test test-long test-vm unit scenarios bench bench-peers bench-all bench-check bench-record lint fuzz miri clean help test-debian13 test-dpdk

build: deps
	$(CARGO) build --release --locked

demo: build
	scripts/demo.sh

test: unit scenarios

# Thirty times the cases of properties, and tables ten times as large.
test-long: export PROPTEST_CASES = 8192
test-long: export SCRIPTS = 10000
test-long: export SCENARIO_ROUTES = 100000
test-long: export RESTART_ROUTES = 1000000
test-long: export TWINS_PACKETS = 5000
test-long: export CHURN_SECONDS = 3600
test-long: export EVENT_PACKETS = 10000000
test-long: export SOAK = 4
test-long: export PYTEST_TIMEOUT = 0
test-long: unit scenarios

# One build is for the unit tests and the scenarios, with the checks of arithmetic on, with what the tests of other crates
# use, and with a step that has a defect, which one scenario puts into its graph. `acl`, `agentx`, `fib`, `samples` and `wire`
# are checked once more by themselves, where no DPDK can be found: they must not need it.
FEATURES = --features turnpike/faulty-step,acl/testing,control/testing,machine/testing,turnpike/testing
unit: deps
	$(CARGO) test --locked --workspace $(FEATURES)
	PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=/nonexistent $(CARGO) check --locked --tests -p acl -p agentx -p fib -p samples -p wire

# Python keeps the scenarios' code, in which pytest has rewritten the assertions: once, and not in each worker.
export PYTHONDONTWRITEBYTECODE =

# Scenarios mostly wait, so more run at a time than there are cores. Those that measure time run alone. 5 says
# that PYTEST chose none of them.
WORKERS ?= 6
TARGET = $(abspath $(or $(CARGO_TARGET_DIR),target))
SCENARIOS = TURNPIKE=$(TARGET)/debug/turnpike $(PYTHON) -m pytest tests
FLOW_DEVICE = $(TARGET)/flow_device.so
scenarios: deps $(PYTHON) $(FLOW_DEVICE)
	$(CARGO) build --locked --workspace $(FEATURES)
	@$(SCENARIOS) --collect-only -qq > /dev/null 2>&1 || true
	@status=0; set -x; \
	$(SCENARIOS) -m "not alone" -n $(WORKERS) --dist loadgroup $(PYTEST) || [ $$? -eq 5 ] || status=1; \
	$(SCENARIOS) -m alone $(PYTEST) || [ $$? -eq 5 ] || status=1; \
	exit $$status

# A device that holds rules of filters, for scenarios: it is put in front of DPDK.
$(FLOW_DEVICE): tests/flow_device/flow_device.c | deps
	@mkdir -p $(@D)
	$(CC) -O2 -Wall -Wextra -shared -fPIC $$(pkg-config --cflags libdpdk) -o $@ $< \
	  $$(pkg-config --libs libdpdk) -ldl

# One machine is booted for all of them, which run in it one after the other; with MACHINES=2 there are two, of 4 GB each.
MACHINES ?= 1
test-vm: deps $(PYTHON)
	@scripts/install-vm-deps.sh
	$(CARGO) build --locked --workspace $(FEATURES)
	$(SCENARIOS)/vm $(if $(filter-out 1,$(MACHINES)),-n $(MACHINES) --dist loadfile) $(PYTEST)

# Everything at once, for hours; the report is tests/results/soak.json.
HOURS ?= 3
soak: deps $(PYTHON)
	$(CARGO) build --locked --workspace $(FEATURES)
	TURNPIKE=$(TARGET)/debug/turnpike $(PYTHON) tests/soak.py --hours $(HOURS) --out tests/results/soak.json

# Another release of Debian in target/debian/, see scripts/in-debian.sh.
IN_DEBIAN = scripts/in-debian.sh
ON_DEBIAN13 ?= forwarding or host_interface or frr or bird or loopback
test-debian13: deps $(PYTHON)
	$(IN_DEBIAN) trixie make unit scenarios PYTEST='-k "$(ON_DEBIAN13)"'

# The release of Debian that has a DPDK.
DPDK ?= 24.11 25.11
DEBIAN_24.11 = trixie
DEBIAN_25.11 = forky
test-dpdk: deps $(PYTHON) $(DPDK:%=test-dpdk-%)
test-dpdk-%:
	$(IN_DEBIAN) $(or $(DEBIAN_$*),$(error no release of Debian is known here to have DPDK $*)) \
	  sh -c 'case $$(pkg-config --modversion libdpdk) in $*.*) make unit ;; \
	  *) echo "Debian $(DEBIAN_$*) has DPDK $$(pkg-config --modversion libdpdk), not $*"; exit 1 ;; esac'

ifdef EXP
bench: build
	@mkdir -p bench/results
	python3 bench/$(EXP).py --json bench/results/$(EXP).json
else
bench: build
	@mkdir -p bench/results
	l3fwd=$$(scripts/build-l3fwd.sh) || echo "no l3fwd to compare with"; \
	  $(TARGET)/release/turnpike bench forward $$(for program in $$l3fwd; do echo --l3fwd "$$program"; done) --json > bench/results/forward.json
	$(TARGET)/release/turnpike bench forward
	$(TARGET)/release/turnpike bench fib --table synthetic:500000 --table6 synthetic:100000 \
	  --rounds 5 --json > bench/results/fib.json
	python3 bench/iperf.py --json bench/results/iperf.json
	python3 bench/host_interface.py --json bench/results/host_interface.json
endif

# One that cannot be built is named, and the others run.
bench-peers: build
	@mkdir -p bench/results
	python3 bench/peers.py --no-docs --json bench/results/peers.json
	if scripts/build-fastclick.sh >/dev/null; then python3 bench/fastclick.py --no-docs --json bench/results/fastclick.json; \
	  else echo "FastClick cannot be built: left out"; fi

# Every experiment is a file in bench/ with a command line; common.py, fabric_model.py and instructions.py are not, and bench-peers runs peers.py.
EXPERIMENTS = $(filter-out common fabric_model instructions peers,$(basename $(notdir $(wildcard bench/*.py))))
bench-all: bench-peers
	for name in $(EXPERIMENTS); do python3 bench/$$name.py --json bench/results/$$name.json || exit; done

bench-check: build
	python3 bench/instructions.py --check

bench-record: build
	python3 bench/instructions.py --record

# The two flags: tests measure time, and checking borrows of large arrays at every lookup takes days.
miri:
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-disable-stacked-borrows" \
	  $(CARGO) +nightly miri test --locked -p fib

# Crates that need no DPDK, for arm64; rustup target add aarch64-unknown-linux-gnu.
check-arm64:
	PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=/nonexistent $(CARGO) check --locked --target aarch64-unknown-linux-gnu \
	  -p acl -p api -p click -p convert -p fib -p top -p web -p wire

lint: deps
	$(CARGO) fmt --all --check
	cd fuzz && $(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	cd fuzz && $(CARGO) clippy --locked --all-targets --target-dir ../target -- -D warnings
	@command -v tsc >/dev/null || scripts/install-packages.sh node-typescript
	tsc -p crates/web/dashboard/jsconfig.json

# Seconds for each target; the targets are in fuzz/.
FUZZ_SECONDS ?= 60
fuzz: deps
	scripts/fuzz.sh $(FUZZ_SECONDS)

asan: deps $(PYTHON)
	scripts/asan.sh

# The release of Debian that the package is built on, unless named: RELEASE=trixie in a chroot of it
# (scripts/in-debian.sh trixie make deb).
BINARY ?=
deb: deps
	TURNPIKE_BINARY=$(BINARY) scripts/build-deb.sh

RELEASE ?= $(shell . /etc/os-release && echo $$VERSION_CODENAME)
deb-test:
	scripts/test-deb.sh $(if $(UPGRADE),--upgrade) $(RELEASE)
	$(if $(BOOT),scripts/test-deb.sh --boot $(RELEASE))

image:
	scripts/build-image.sh $(RELEASE)

image-test:
	scripts/test-image.sh

reproducible: deps
	scripts/reproducible.sh

licences:
	python3 scripts/licences.py
	! command -v cargo-deny >/dev/null || cargo deny check

# The scenarios' Python packages, made again when their list changes.
$(PYTHON): tests/requirements.txt
	@echo "== installing the Python packages of tests/requirements.txt into .venv"
	@scripts/install-deps.sh
	python3 -m venv .venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $(PYTHON)

.PHONY: deps
deps:
	@scripts/install-deps.sh

clean:
	$(CARGO) clean
	rm -rf .venv bench/results

help:
	@sed -n '3,/^$$/s/^#  *//p' Makefile

#!/usr/bin/env python3
"""The experiments of the PC router on Linux (Politecnico di Torino), beside the kernel of today.

livelock        forwarding rate over offered rate from 10 % to 1,000 % of what a router can forward, by the ways to
                wait, and the kernel's; each is slowed down, so that there is a generator that can do this
livelock-ports  the same for 6, 10 and 14 ports, half of which receive, each for one other (one-to-one) or for all of the
                other half (uniform)
overload        what is forwarded at up to 1,000 %, and how many of the packets of network control among it, with
                overload control and without
fairness        a fast and a slow source that share a forwarder, offered 10 to 1, by equal and by unequal quotas
latency         delay at 1 to 90 % of what a router can forward, by the ways to wait, and the kernel's
directions      forwarding rate in a veth topology, one way and both ways at once
ports           throughput of 2 to 14 ports, each to one other (one-to-one) or to all others (uniform)
sizes           throughput by frame size
"""

import json
import statistics
import sys
import tempfile
import time

import common
import moonroute
from lib.lab import Lab
from lib.packets import ethernet, ipv4, pattern, udp

# Thousand packets per second in each direction: more than either router forwards.
OFFERED = 800
# Shares of a router's capacity.
LOADS = [0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 4, 7, 10]
MODES = ["interrupt", "moderated", "adaptive", "poll", "kernel"]

# A step that takes some ten microseconds a packet, so that a generator on the same machine can offer ten times the
# capacity of a forwarder.
SLOW = """
local sink = 0
local slow = turnpike.step "slow" {
  budget_us = 1000000,
  process = function(batch, mask)
    for i in batch:each(mask) do
      local x = i
      for n = 1, 1500 do x = (x * 5 + n) % 1000003 end
      sink = sink + x
    end
    return mask
  end,
}
turnpike.graph:insert_after("ip4-validate", slow)
"""
# Equally slow, for the kernel.
SLOW_KERNEL = 1000


def forwarded(by, kpps, seconds, both=False):
    """Thousand packets per second that arrive of so many offered ones, in each direction."""
    lab = Lab()
    try:
        # A device belongs to one generator, so that both ways are two pairs of ports.
        wires = common.Veths(lab, by, count=4 if both else 2)
        ways = [(1, 2), (4, 3)] if both else [(1, 2)]
        running = [wires.generate(source, sink, f"{kpps}kpps", seconds) for source, sink in ways]
        done = [common.report(generator) for generator in running]
        return sum(one["received"]["packets"] for one in done) / seconds / 1000
    finally:
        lab.close()


def kpps(done, seconds):
    return sum(report["received"]["packets"] for report in done) / seconds / 1000


def offer(wires, ways, seconds):
    """Thousand packets per second that arrive in each direction; `ways`: source, sink and thousand packets per
    second."""
    running = [wires.generate(source, sink, f"{max(1, round(rate))}kpps", seconds) for source, sink, rate in ways]
    return [kpps([common.report(one)], seconds) for one in running]


def slow_config(mode, shed=True):
    """The configuration of a router that forwards some ten thousand packets per second on the last core."""
    core = common.cores()[-1]
    return f'turnpike.forwarders {{ cores = "{core}", wait = "{mode}", shed = {str(shed).lower()} }}\n' + SLOW


def use_core(wires, core):
    """Makes the kernel forward on this core; otherwise it would do so on the generator's, at the generator's
    expense."""
    wires.router_side.run("sh", "-c", f"for f in /sys/class/net/tp-*/queues/rx-0/rps_cpus; do echo {1 << core:x} > $f; done")


def slowed(lab, mode, **settings):
    """A topology whose router, or kernel, forwards some ten thousand packets per second on the last core."""
    core = common.cores()[-1]
    if mode != "kernel":
        return common.Veths(lab, "turnpike", config=slow_config(mode), **settings)
    wires = common.Veths(lab, "kernel", **settings)
    use_core(wires, core)
    rules = "\n".join(f"ip saddr 192.0.{n // 250}.{n % 250} drop" for n in range(SLOW_KERNEL))
    table = f"table ip slow {{ chain forward {{ type filter hook forward priority 0\n{rules}\n}}\n}}\n"
    wires.router_side.run("nft", "-f", "-", input=table)
    return wires


def livelock(given):
    runs = {mode: [] for mode in MODES}
    for number in range(given.runs):
        for mode in MODES:
            lab = Lab()
            try:
                wires = slowed(lab, mode)
                (capacity,) = offer(wires, [(1, 2, 200)], given.seconds)
                rates = [offer(wires, [(1, 2, capacity * load)], given.seconds)[0] for load in LOADS]
            finally:
                lab.close()
            runs[mode].append({"capacity": capacity, "forwarded": rates})
            print(f"run {number + 1}/{given.runs} {mode}: {capacity:.0f}, {[round(rate) for rate in rates]}", file=sys.stderr)
    series, rows = {}, []
    for mode, done in runs.items():
        # Each run by its own best rate: the machine's speed changes from run to run.
        shares = [[100 * rate / max(one["forwarded"]) for rate in one["forwarded"]] for one in done]
        middle = [statistics.median(share) for share in zip(*shares)]
        series[mode] = list(zip([100 * load for load in LOADS], middle))
        best = statistics.median(max(one["forwarded"]) for one in done)
        least = min(share[-1] for share in shares)
        rows.append(f"| {mode} | {best:.0f} | " + " | ".join(f"{share:.0f}" for share in middle) + f" | {least:.0f} |")
    head = "| | best, thousand packets/s | " + " | ".join(f"{100 * load:.0f} %" for load in LOADS) + " | 1,000 %, minimum |"
    table = "\n".join([head, "|" + "---|" * (len(LOADS) + 3), *rows]) + "\n"
    drawn = common.figure("Forwarding rate over offered load", "offered, % of capacity", "forwarded, % of the best", series, log_x=True)
    said = "At ten times its capacity: " + ", ".join(f"{mode} {points[-1][1]:.0f} % of its best rate" for mode, points in series.items()) + "."
    published = (
        "by interrupts the rate fell to zero beyond 230,000 packets/s offered, by moderated interrupts beyond 500,000; "
        "NAPI kept 510,000 at any load (figure 4)."
    )
    return common.Part(drawn, runs, said, published, table)


PORTS = [6, 10, 14]
# Thousand packets per second that all generators are to send together.
PORTS_OFFERED = [50, 100, 200, 800, 8000]


def offer_all(wires, ports, uniform, rate, seconds):
    """Thousand packets per second that half of the ports receive together at this rate, as far as the generators keep
    it, and that arrive at the other half."""
    sources, sinks = range(1, ports, 2), range(2, ports + 1, 2)
    each = max(1, round(1000 * rate / len(sources)))
    free = common.cores()[:-1]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        table.writelines(f"10.{port}.0.2/32\t1\n" for port in sinks)
        table.flush()
        to = f"table:{table.name}" if uniform else None
        sent = {source: wires.left([source]) for source in sources}
        running = [
            wires.generate(source, source + 1, f"{each}pps", 60, to=to, core=free[number % len(free)])
            for number, source in enumerate(sources)
        ]
        # Those that share a core begin one after the other, and each with a packet or two to its neighbours.
        while not all(wires.left([source]) > sent[source] + 10 for source in sources):
            time.sleep(0.1)
        before, start = (wires.left(sources), wires.arrived(sinks)), time.monotonic()
        time.sleep(seconds)
        after, end = (wires.left(sources), wires.arrived(sinks)), time.monotonic()
        for one in running:
            if one.poll() is not None:
                raise RuntimeError(f"generate: {one.communicate()[1]}")
            one.terminate()
        for one in running:
            one.communicate(timeout=60)
    return [(now - then) / (end - start) / 1000 for now, then in zip(after, before)]


def livelock_ports(given):
    rows = [(ports, uniform, mode) for ports in PORTS for uniform in (False, True) for mode in MODES]

    def measure(row):
        ports, uniform, mode = row
        lab = Lab()
        try:
            wires = slowed(lab, mode, count=ports)
            return [offer_all(wires, ports, uniform, rate, given.seconds) for rate in PORTS_OFFERED]
        finally:
            lab.close()

    named = {row: f"{row[0]} ports, {'uniform' if row[1] else 'one-to-one'}, {row[2]}" for row in rows}
    runs = common.rounds(given.runs, rows, measure)
    series, lines, kept = {}, [], {mode: [] for mode in MODES}
    for row, done in runs.items():
        points = [[statistics.median(values) for values in zip(*point)] for point in zip(*done)]
        # Each run by its own best rate: the machine's speed changes from run to run.
        shares = [100 * run[-1][1] / max(forwarded for _, forwarded in run) for run in done]
        kept[row[2]].append(statistics.median(shares))
        if row[0] == PORTS[-1]:
            series[named[row]] = points
        of = " | ".join(f"{offered:.0f}: {forwarded:.0f}" for offered, forwarded in points)
        lines.append(f"| {named[row]} | {of} | {statistics.median(shares):.0f} ({min(shares):.0f}) |")
    head = "| offered: forwarded, thousand packets/s | " + " | ".join(f"{rate} asked" for rate in PORTS_OFFERED) + " | last, % of best (minimum) |"
    table = "\n".join([head, "|" + "---|" * (len(PORTS_OFFERED) + 2), *lines]) + "\n"
    title = f"Forwarded over offered packets, {PORTS[-1]} ports"
    drawn = common.figure(title, "offered, thousand packets/s", "forwarded, thousand packets/s", series, log_x=True)
    said = "Under the highest load, the least of all rows in percent of the best rate: " + ", ".join(
        f"{mode} {min(shares):.0f}" for mode, shares in kept.items()) + "."
    published = "the saturation rate falls slightly from 6 to 14 ports, and is slightly less for the uniform pattern (figures 10, 11)."
    return common.Part(drawn, {named[row]: done for row, done in runs.items()}, said, published, table)


COUNTING = """
turnpike.filter "count" { { dscp = "cs6", action = "accept", name = "control" }, default = "accept" }
"""
# Of a hundred packets, one is of network control.
CONTROL = ",".join(["0"] * 99 + ["48"])


def survivors(wires, rate, seconds):
    """Thousand packets per second that arrive at such a rate, and the share of control packets among them."""
    hits = lambda: next(rule["packets"] for rule in wires.router.show("filters")[0]["rules"] if rule["name"] == "control")  # noqa: E731
    before = hits()
    done = common.report(wires.generate(1, 2, f"{max(1, round(rate))}kpps", seconds, dscp=CONTROL))
    return kpps([done], seconds), (hits() - before) / (done["sent"] / 100)


def overloaded(lab, device, shed):
    """A slow router behind such devices that counts the control packets it forwards."""
    config, counted = slow_config("adaptive", shed) + COUNTING, {2: ', filter = { outward = "count" }'}
    if device == "memif":
        return common.Memifs(lab, config=config, settings=counted)
    return common.Veths(lab, "turnpike", config=config, settings=counted)


def overload(given):
    seconds, loads = max(3, given.seconds), [load for load in LOADS if load >= 1]
    runs = {(device, shed): [] for device in ("memif", "veth") for shed in (False, True)}
    for number in range(given.runs):
        for device, shed in runs:
            lab = Lab()
            try:
                wires = overloaded(lab, device, shed)
                (capacity,) = offer(wires, [(1, 2, 200)], given.seconds)
                done = [survivors(wires, capacity * load, seconds) for load in loads]
            finally:
                lab.close()
            runs[device, shed].append({"capacity": capacity, "done": done})
            print(f"run {number + 1}/{given.runs} {device} {shed}: {capacity:.0f}, {done}", file=sys.stderr)
    runs = {f"{device}, {'with' if shed else 'without'}": done for (device, shed), done in runs.items()}
    rows, series = [], {}
    for name, done in runs.items():
        shares = [[100 * rate / one["capacity"] for rate, _ in one["done"]] for one in done]
        control = [[100 * part for _, part in one["done"]] for one in done]
        for what, values in (("forwarded", shares), ("of control", control)):
            middle, least = ([choose(column) for column in zip(*values)] for choose in (statistics.median, min))
            series[f"{what}, {name}"] = list(zip([100 * load for load in loads], middle))
            cells = " | ".join(f"{share:.0f} ({lowest:.0f})" for share, lowest in zip(middle, least))
            rows.append(f"| {what}, {name} | {cells} |")
    head = "| % | " + " | ".join(f"{100 * load:.0f} %" for load in loads) + " |"
    table = "\n".join([head, "|" + "---|" * (len(loads) + 1), *rows]) + "\n"
    drawn = common.figure("Overload control", "offered, % of capacity", "%", series, log_x=True)
    last = {name: points[-1][1] for name, points in series.items()}
    arrive = ", ".join(f"{name}: {last[f'of control, {name}']:.0f} %" for name in runs)
    said = f"At ten times the capacity arrive of the control packets: {arrive}."
    return common.Part(drawn, runs, said, "nothing: the original has no such thing.", table)


# Shares of a router's capacity, and quantiles of the delays.
LATENCY_LOADS = [0.01, 0.1, 0.5, 0.9]
QUANTILES = {"p50": "median", "p99": "99 %", "p999": "99.9 %", "max": "maximum"}


def unslowed(lab, mode):
    """A topology whose router, or kernel, forwards on the last core as fast as it can."""
    core = common.cores()[-1]
    if mode != "kernel":
        return common.Veths(lab, "turnpike", config=f'turnpike.forwarders {{ cores = "{core}", wait = "{mode}" }}\n')
    wires = common.Veths(lab, "kernel")
    use_core(wires, core)
    return wires


def latency(given):
    seconds, runs = max(3, given.seconds), {mode: [] for mode in MODES}
    for number in range(given.runs):
        for mode in MODES:
            lab = Lab()
            try:
                wires = unslowed(lab, mode)
                (capacity,) = offer(wires, [(1, 2, OFFERED)], given.seconds)
                sent = [wires.generate(1, 2, f"{max(1, round(capacity * load))}kpps", seconds).communicate() for load in LATENCY_LOADS]
            finally:
                lab.close()
            delays = [json.loads(out)["received"]["delay_ns"] for out, _ in sent]
            runs[mode].append({"capacity": capacity, "delay_ns": delays})
            print(f"run {number + 1}/{given.runs} {mode}: {capacity:.0f}, {[one['p50'] for one in delays]}", file=sys.stderr)
    middle = {
        mode: [{name: statistics.median(one["delay_ns"][at][name] / 1000 for one in done) for name in QUANTILES} for at in range(len(LATENCY_LOADS))]
        for mode, done in runs.items()
    }
    head = "| median, 99 %, 99.9 %, maximum, us | capacity, thousand packets/s | " + " | ".join(f"{100 * load:.0f} %" for load in LATENCY_LOADS) + " |"
    rows = [
        f"| {mode} | {statistics.median(one['capacity'] for one in runs[mode]):.0f} | "
        + " | ".join(", ".join(f"{delays[name]:.0f}" for name in QUANTILES) for delays in loads) + " |"
        for mode, loads in middle.items()
    ]
    table = "\n".join([head, "|" + "---|" * (len(LATENCY_LOADS) + 2), *rows]) + "\n"
    series = {
        f"{mode}, {QUANTILES[name]}": [(100 * load, delays[name]) for load, delays in zip(LATENCY_LOADS, loads)]
        for mode, loads in middle.items() for name in ("p50", "p99")
    }
    drawn = common.figure("Delay by load", "offered, % of capacity", "microseconds", series, log_x=True, log_y=True)
    half = ", ".join(f"{mode} {loads[2]['p50']:.0f} and {loads[2]['p99']:.0f} us" for mode, loads in middle.items())
    return common.Part(drawn, runs, f"Median and 99 % of the delay at half of the capacity: {half}.", "no figure of delays.", table)


def jain(values):
    """Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def fair(rates, weights):
    """Weighted max-min fair shares of sources with these offered rates, of their measured total."""
    total, shares, left = sum(done for _, done in rates), [0.0] * len(rates), list(range(len(rates)))
    while left:
        unit = total / sum(weights[place] for place in left)
        satisfied = [place for place in left if rates[place][0] <= unit * weights[place]]
        for place in satisfied or left:
            shares[place] = min(rates[place][0], unit * weights[place])
            total -= shares[place]
        if not satisfied:
            break
        left = [place for place in left if place not in satisfied]
    return shares


def fairness(given):
    points, runs, said = {}, {}, []
    loads = [0.5, 1, 1.5, 2, 3, 4]
    for name, quotas in (("Q 64/64", (64, 64)), ("Q 270/27", (270, 27))):
        runs[name] = []
        for number in range(given.runs):
            lab = Lab()
            try:
                settings = {port: f", quota = {quota}" for port, quota in zip((1, 3), quotas)}
                wires = slowed(lab, "adaptive", count=4, settings=settings)
                (capacity,) = offer(wires, [(1, 2, 200)], given.seconds)
                offered = [[capacity * load * part for part in (10 / 11, 1 / 11)] for load in loads]
                done = [offer(wires, [(1, 2, fast), (3, 4, slow)], given.seconds) for fast, slow in offered]
            finally:
                lab.close()
            runs[name].append({"capacity": capacity, "offered": offered, "forwarded": done})
            print(f"run {number + 1}/{given.runs} {name}: {capacity:.0f}, {done}", file=sys.stderr)
        share = lambda place: [
            (load, statistics.median(one["forwarded"][at][place] / one["capacity"] for one in runs[name]))  # noqa: B023
            for at, load in enumerate(loads)
        ]
        points[f"fast, {name}"], points[f"slow, {name}"] = share(0), share(1)
        indexes = []
        for one in runs[name]:
            rates = list(zip(one["offered"][-1], one["forwarded"][-1]))
            due = fair(rates, quotas)
            indexes.append(jain([done / due for (_, done), due in zip(rates, due)]))
        fast, slow = points[f"fast, {name}"][-1][1], points[f"slow, {name}"][-1][1]
        said.append(
            f"{name}, {loads[-1]} times the capacity offered: {100 * fast:.0f} % of it to the fast source, "
            f"{100 * slow:.0f} % to the slow one; Jain's index of what each gets of its max-min share "
            f"{statistics.median(indexes):.3f} (least {min(indexes):.3f})."
        )
    drawn = common.figure("Two sources, offered 10 to 1", "offered, times the capacity", "forwarded, of the capacity", points)
    published = (
        "with Q 64/64 the slow flow gets all it offers and takes it from the fast one, max-min fair (figure 8); with "
        "270/27 the shares are 10 to 1 (figure 9)."
    )
    return common.Part(drawn, runs, " ".join(said), published)


def directions(given):
    words, points, runs = [], {"one way": [], "both ways": []}, {}
    for index, by in enumerate(("turnpike", "kernel")):
        words.append(by)
        for name, both in (("one way", False), ("both ways", True)):
            middle, runs[f"{by} {name}"] = common.sweep(given.runs, [OFFERED], lambda kpps: forwarded(by, kpps, given.seconds, both))
            points[name].append((index, middle[OFFERED]))
    drawn = common.figure(f"Forwarding rate at {OFFERED},000 packets/s offered each way", "", "thousand packets/s", points, words=words)
    said = " ".join(
        f"{by.capitalize()}: {points['one way'][n][1]:.0f} thousand packets/s one way, {points['both ways'][n][1]:.0f} both ways together."
        for n, by in enumerate(words)
    )
    return common.Part(drawn, runs, said, "510,000 packets/s one way, 620,000 both ways, 730,000 with recycled buffers (figures 6, 7).")


def matrix(ports, uniform):
    """Destinations of each port: its partner, or all others in turn."""
    to = lambda port: f"10.{port}.0.2"  # noqa: E731
    if uniform:
        return [[to(p) for p in range(1, ports + 1) if p != port] * 16 for port in range(1, ports + 1)]
    return [[to((port - 1 ^ 1) + 1)] * 64 for port in range(1, ports + 1)]


def ports(given):
    series, runs = {}, {}
    for name, uniform in (("one-to-one", False), ("uniform", True)):
        measure = lambda count: common.flood_rate(given.seconds, destinations=matrix(count, uniform))  # noqa: B023, E731
        middle, runs[name] = common.sweep(given.runs, [2, 4, 8, 14], measure)
        series[name] = middle.items()
    drawn = common.figure("Throughput by ports, one core", "ports", "million packets/s", series)
    said = "On one core " + "; ".join(f"{name}: " + ", ".join(f"{count} ports {rate:.1f} Mpps" for count, rate in points) for name, points in series.items()) + "."
    return common.Part(drawn, runs, said, "the saturation rate falls slightly from 6 to 14 ports, and is slightly less for the uniform pattern (figures 10, 11).")


def sizes(given):
    middle, runs = common.sweep(given.runs, [64, 128, 256, 512, 1024, 1518], lambda size: moonroute.two_ports(given, size=size))
    drawn = common.figure("Throughput by frame size", "frame, bytes", "million packets/s", {"1 core": middle.items()})
    said = "On one core " + ", ".join(f"{size} B: {rate:.1f} Mpps" for size, rate in middle.items()) + "."
    return common.Part(drawn, runs, said, "about 500,000 packets/s of 64 and 128 bytes; from 512 bytes on, 1 Gbit/s (figure 5).")


PARTS = {"livelock": livelock, "livelock-ports": livelock_ports, "overload": overload, "fairness": fairness, "latency": latency, "directions": directions, "ports": ports, "sizes": sizes}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS))

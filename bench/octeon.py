#!/usr/bin/env python3
"""The experiments of Click on OCTEON (VTT).

lossfree   the highest rate without loss, and with 0.5 % of it, by frame size, over memif links
cores      forwarding rate by cores and frame size: flooded, so an upper bound of the loss-free one
line-rate  the smallest frame at which one core fills a link of 1, 10, 25, 40 and 100 Gbit/s
modes      forwarding rate with event devices in software, by order and cores, beside run to completion
model      a queueing model of the modes for 1 to 12 cores, from the costs of stages on all cores here, beside what is
           measured here
order      packets of one flow that arrive after a later one, of ten million, by mode, over memif links
idle       the share of its time that a forwarder's core is idle, by offered rate, over veth pairs
"""

import statistics
import sys
import time

import common
import moonroute
from lib.lab import Lab

SIZES = [64, 128, 256, 512, 1024, 1518]
PUBLISHED = (
    "12 cores of 750 MHz fill 10 Gbit/s with frames of 128 bytes, and six of them with 256 bytes; of 64 bytes they forward far "
    "less than the link's 14.88 Mpps, not linearly by cores, and from seven cores on little more (figures 7 to 9)."
)
# Preamble, start delimiter and gap of Ethernet.
GAP = 20


def lossfree(given):
    found = common.turnpike(
        "bench", "rfc2544", "--seconds", given.seconds, "--repeats", given.runs, "--test", "throughput",
        "--size", ",".join(map(str, SIZES)), "--resolution", 3,
    )
    of = lambda key: [(one["size"], one[key] / 1e6) for one in found]  # noqa: E731
    series = {"without loss": of("ndr_pps"), "0.5 % lost": of("pdr_pps"), "the tester's": of("highest_pps")}
    drawn = common.figure("Loss-free rate by frame size, memif", "frame, bytes", "million packets/s", series)
    said = "Without loss and with 0.5 %: " + ", ".join(
        f"{size} B {none:.2f} and {few:.2f} Mpps" for (size, none), (_, few) in zip(series["without loss"], series["0.5 % lost"])
    ) + "."
    return common.Part(drawn, found, said, PUBLISHED)


def cores(given):
    have = common.cores()
    series, runs = {}, {}
    for count in given.cores:
        measure = lambda size: moonroute.two_ports(given, size=size, queues=count, cores_used=have[-count:])  # noqa: B023, E731
        middle, runs[count] = common.sweep(given.runs, [64, 256, 1024, 1518], measure)
        series[f"{count} core{'s' if count > 1 else ''}"] = middle.items()
    drawn = common.figure("Forwarding rate by cores and frame size", "frame, bytes", "million packets/s", series)
    said = "; ".join(f"{name}: " + ", ".join(f"{size} B {rate:.1f}" for size, rate in points) for name, points in series.items()) + " Mpps."
    return common.Part(drawn, runs, said, PUBLISHED)


def smallest_at(gbit, rates):
    """The smallest frame whose rate fills a link; rates by size. None if none does."""
    fits = [size for size, pps in sorted(rates.items()) if pps * (size + GAP) * 8 >= gbit * 1e9]
    return fits[0] if fits else None


def line_rate(given):
    middle, runs = common.sweep(given.runs, SIZES, lambda size: moonroute.two_ports(given, size=size))
    rates = {size: mpps * 1e6 for size, mpps in middle.items()}
    links = [1, 10, 25, 40, 100]
    found = {gbit: smallest_at(gbit, rates) for gbit in links}
    points = [(gbit, size) for gbit, size in found.items() if size]
    drawn = common.figure("Smallest frame at line rate, one core", "link, Gbit/s", "frame, bytes", {"Turnpike": points}, log_x=True)
    said = "One core fills " + ", ".join(f"{gbit} Gbit/s from {size} bytes" if size else f"no {gbit} Gbit/s" for gbit, size in found.items()) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


# Event devices and their orders.
DEVICES = {"event_sw0": ("ordered", "atomic", "parallel"), "event_dsw0": ("atomic", "parallel")}


def event_mode(device, order, used):
    """Settings for these cores: the receiver has the first to itself, and the thread that schedules for `event_sw` the
    last; of two cores it shares the receiver's, and on one core all share."""
    has_scheduler = device.startswith("event_sw")
    workers = used[:-1] if has_scheduler and len(used) > 2 else used
    scheduler = used[-1] if len(used) > 2 else used[0]
    shared = f", receive_core = {used[0]}" if len(used) == 1 else ""
    return dict(
        cores_used=workers,
        forwarders=f'mode = "events", device = "{device}", order = "{order}", scheduler_core = {scheduler}{shared}',
    )


def mode(name, used):
    """Settings of `Flood` for a mode on these cores."""
    return dict(cores_used=used, queues=len(used)) if name == COMPLETION else event_mode(*name.split(", "), used)


COMPLETION = "run to completion"
MODES = [COMPLETION] + [f"{device}, {order}" for device, orders in DEVICES.items() for order in orders]


def modes(given):
    have = common.cores()
    rows = [(name, count) for count in given.cores for name in MODES]
    measure = lambda row: moonroute.two_ports(given, **mode(row[0], have[-row[1]:]))  # noqa: E731
    middle, runs = common.sweep(given.runs, rows, measure)
    points = {name: [(count, middle[name, count]) for count in given.cores] for name in MODES}
    drawn = common.figure("Forwarding rate by mode, 64 bytes", "cores", "million packets/s", points)
    head = "| 64 bytes, Mpps | " + " | ".join(f"{count} core{'s' if count > 1 else ''}" for count in given.cores) + " |"
    cells = lambda name: " | ".join(f"{middle[name, count]:.2f} ({min(runs[name, count]):.2f})" for count in given.cores)  # noqa: E731
    table = "\n".join([head, "|" + "---|" * (len(given.cores) + 1), *(f"| {name} | {cells(name)} |" for name in MODES)]) + "\n"
    most = given.cores[-1]
    best = max(MODES[1:], key=lambda name: middle[name, most])
    said = f"On {most} cores events give {middle[best, most] / middle[COMPLETION, most]:.2f} of the rate of run to completion ({best})."
    return common.Part(drawn, {", ".join(map(str, row)): done for row, done in runs.items()}, said, PUBLISHED, table)


# Cores of the model, and batches under way in it: an event device holds some thousand packets.
MODELLED, UNDER_WAY = range(1, 13), 128


def stage_costs(given, name, used):
    """Microseconds of a core for each packet in each stage of a mode on these cores. A thread's time is that on its core,
    of which its share of rounds with packets counts; the scheduler's, which cannot be told from its waiting, counts
    whole."""
    lab = Lab()
    try:
        flood = common.Flood(lab, [["10.2.0.2"] * 256, ["10.1.0.2"] * 256], **mode(name, used))
        pid, show = flood.router.process.pid, lambda: flood.router.show("forwarders")["forwarders"]
        threads = [f"forwarder-{one['number']}" for one in show()]
        threads += ["event-scheduler"] if "event_sw" in name else []
        read = lambda: ([common.cpu_seconds(pid, thread) for thread in threads], show(), flood.router.show("counters")["sent"])  # noqa: E731
        time.sleep(0.3)
        before, first, sent = read()
        time.sleep(max(2, given.seconds))
        after, last, now = read()
        spent, sent = [end - begin for begin, end in zip(before, after)], now - sent
        for index, (begin, end) in enumerate(zip(first, last)):
            busy, idle = (end[key] - begin[key] for key in ("busy_cycles", "idle_cycles"))
            spent[index] *= busy / max(1, busy + idle)
        per_packet = [1e6 * seconds / sent for seconds in spent]
    finally:
        lab.close()
    if name == COMPLETION:
        return {"forward": sum(per_packet)}
    workers = sum(per_packet[1:len(first)])
    return {"receive and send": per_packet[0], "forward": workers, "schedule": sum(per_packet[len(first):])}


def demands(name, costs, count):
    """Microseconds for each packet on each of so many cores. Without a core of its own a stage is where `event_mode` puts
    it, and workers take what is left of the cores that they share."""
    if name == COMPLETION:
        return [costs["forward"] / count] * count
    fixed = [costs["receive and send"]] + ([costs["schedule"]] if costs["schedule"] else [])
    if count == 1:
        return [sum(fixed) + costs["forward"]]
    if count == 2:
        whole = sum(fixed) + costs["forward"]
        first = max(sum(fixed), whole / 2)
        return [first, whole - first]
    workers = count - len(fixed)
    return fixed + [costs["forward"] / workers] * workers


def closed_network(needs, customers):
    """The rate, in customers for each unit of time, of a closed network of queues with one server each and these demands:
    mean value analysis (Reiser and Lavenberg, 1980)."""
    lengths, rate = [0.0] * len(needs), 0.0
    for present in range(1, customers + 1):
        times = [need * (1 + length) for need, length in zip(needs, lengths)]
        rate = present / sum(times)
        lengths = [rate * spent for spent in times]
    return rate


def model(given):
    have = common.cores()
    few = [count for count in (1, 2) if count <= len(have)]
    runs = {name: [] for name in MODES}
    for number in range(given.runs):
        for name, done in runs.items():
            costs = stage_costs(given, name, have[-few[-1]:])
            done.append({"costs": costs, "measured": {count: moonroute.two_ports(given, **mode(name, have[-count:])) for count in few}})
            print(f"run {number + 1}/{given.runs} {name}: {done[-1]}", file=sys.stderr)
    series, lines, worst = {}, [], 0
    for name, done in runs.items():
        costs = {stage: statistics.median(one["costs"][stage] for one in done) for stage in done[0]["costs"]}
        rates = {count: closed_network(demands(name, costs, count), UNDER_WAY) for count in MODELLED}
        measured = {count: statistics.median(one["measured"][count] for one in done) for count in few}
        errors = [100 * (rates[count] / measured[count] - 1) for count in few]
        worst = max(worst, abs(errors[-1]))
        series[f"{name}, model"] = list(rates.items())
        stages = ", ".join(f"{stage} {1000 * cost:.0f}" for stage, cost in costs.items() if cost)
        beside = " | ".join(f"{measured[count]:.2f} | {rates[count]:.2f} ({error:+.0f} %)" for count, error in zip(few, errors))
        lines.append(f"| {name} | {stages} | {beside} | {rates[4]:.1f} | {rates[8]:.1f} | {rates[12]:.1f} |")
    head = "| | ns a packet | " + " | ".join(f"{count} measured | {count} model" for count in few) + " | 4 model | 8 model | 12 model |"
    table = "\n".join([head, "|" + "---|" * (2 * len(few) + 5), *lines]) + "\n"
    drawn = common.figure("Rate by mode and cores, model", "cores", "million packets/s", series)
    said = f"On two cores the model errs by {worst:.0f} % at most. On one, threads wait for each other's time slices, which it leaves out."
    return common.Part(drawn, runs, said, PUBLISHED, table)


# Packets of the flow, and their rate, in thousands a second.
NUMBERED, NUMBERED_KPPS = 10_000_000, 250


def order(given):
    have = common.cores()

    def measure(name):
        chosen = mode(name, have)
        config = common.forwarders_on(chosen["cores_used"], chosen.get("forwarders", "")) + "\n"
        lab = Lab()
        try:
            wires = common.Memifs(lab, config=config)
            done = common.report(wires.generate(1, 2, f"{NUMBERED_KPPS}kpps", NUMBERED / NUMBERED_KPPS / 1000))
            arrived = done["received"]
            return {"sent": done["sent"], "arrived": arrived["packets"], **{key: arrived[key] for key in ("reordered", "duplicates")}}
        finally:
            lab.close()

    runs = {name: measure(name) for name in MODES}
    head = "| one flow | sent | arrived | reordered | twice |\n|---|---|---|---|---|\n"
    row = lambda name, one: f"| {name} | {one['sent']:,} | {one['arrived']:,} | {one['reordered']:,} | {one['duplicates']:,} |\n"  # noqa: E731
    table = head + "".join(row(name, one) for name, one in runs.items())
    kept = [name for name, one in runs.items() if one["reordered"] == 0]
    said = f"In the order in which they were sent: {'; '.join(kept)}."
    return common.Part(None, runs, said, "the scheduler keeps the order of a flow; no figure.", table)


def idle(given):
    def measure(kpps):
        lab = Lab()
        try:
            wires = common.Veths(lab, "turnpike")
            pid = wires.router.process.pid
            generator = wires.generate(1, 2, f"{kpps}kpps", given.seconds + 1)
            time.sleep(0.5)
            start, before = time.monotonic(), common.cpu_seconds(pid, "forwarder-0")
            time.sleep(given.seconds)
            used, elapsed = common.cpu_seconds(pid, "forwarder-0") - before, time.monotonic() - start
            common.report(generator)
            return 100 * (1 - used / elapsed)
        finally:
            lab.close()

    middle, runs = common.sweep(given.runs, [1, 10, 50, 100, 200], measure)
    drawn = common.figure("Idle time of the forwarder's core, veth", "thousand packets/s", "idle, %", {"Turnpike": middle.items()}, log_x=True)
    said = "Idle at " + ", ".join(f"{kpps} thousand packets/s: {share:.0f} %" for kpps, share in middle.items()) + "."
    return common.Part(drawn, runs, said, PUBLISHED)


PARTS = {"lossfree": lossfree, "cores": cores, "line-rate": line_rate, "modes": modes, "model": model, "order": order, "idle": idle}

if __name__ == "__main__":
    common.run(lambda: common.experiment(__doc__, PARTS))

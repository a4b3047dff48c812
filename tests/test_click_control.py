"""Handlers of Click's elements: read and written by programs that speak Click's ControlSocket protocol, and by commands."""

import json
import os
import socket
import stat
import subprocess
import threading

import pytest

from lib.apply import refused
from lib.click import ControlSocket
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Hosts, Wires
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, pattern, udp
from lib.router import ROOT, Change, binary

SOCKET = "cs :: ControlSocket(TCP, 7777);\n"

SORTER = SOCKET + """
FromDevice(tp-left) -> in :: Counter -> n :: Null -> s :: Switch(0);
s[0] -> Queue -> right :: Counter -> ToDevice(tp-right);
s[1] -> EtherMirror -> Queue -> left :: AverageCounter -> ToDevice(tp-left);
s[2] -> d :: Discard;
FromDevice(tp-right) -> other :: Counter -> held :: Queue(3) -> sh :: BandwidthShaper(1) -> Unqueue -> d2 :: Discard;
"""


def click(text, *options):
    """Options of a router in a lab that runs a Click configuration."""
    return {"config": text, "ports": "", "options": ["--click", *options]}


def frame(number=0, length=40):
    datagram = udp("10.0.1.2", "10.0.2.2", 1000 + number, 2000, pattern(length))
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", datagram))


def mirrored(one):
    return ethernet(HOST_A_MAC, LEFT_MAC, 0x0800, one[14:])


def test_counts_are_those_of_the_hosts(lab):
    wires = Wires(lab, **click(SORTER), calm=True)
    client = ControlSocket(wires.inside)
    frames = [frame(number, 40 + number) for number in range(20)]
    wires.left.send(*frames)
    assert wires.right.expect(20) == frames
    assert client.read("in.count") == client.read("right.count") == "20"
    assert client.read("in.byte_count") == str(sum(map(len, frames)))
    assert wait_for(lambda: float(client.read("in.rate")) > 0 and float(client.read("in.bit_rate")) > 0)
    assert float(client.read("in.byte_rate")) < float(client.read("in.bit_rate"))
    # A reset is of one counter.
    client.write("in.reset")
    wires.left.send(*frames[:3])
    assert wires.right.expect(3) == frames[:3]
    assert (client.read("in.count"), client.read("right.count")) == ("3", "23")
    assert client.read("left.count") == client.read("left.rate") == "0"
    client.write("s.switch", "2")
    wires.left.send(*frames[:4])
    assert wait_for(lambda: client.read("d.count") == "4")
    client.write("d.reset_counts")
    assert client.read("d.count") == "0"
    assert wires.router.counters()["dropped_total"] == 4
    wires.router.stop()


def test_elements_describe_themselves(lab):
    wires = Wires(lab, **click(SORTER))
    client = ControlSocket(wires.inside)
    assert (client.read("s.class"), client.read("s.name"), client.read("s.config")) == ("Switch", "s", "0")
    # An element without a step has them as well.
    assert (client.read("n.class"), client.read("sh.config")) == ("Null", "1")
    assert client.read("s.ports") == (
        "1 input\npush\t-\tn [0]\n"
        "3 outputs\npush\t-\tQueue@6 [0]\npush\t-\tEtherMirror@9 [0]\npush\t-\td [0]\n"
    ).replace("Queue@6", client.read("right.ports").split("\t")[2].split(" ")[0]).replace(
        "EtherMirror@9", next(name for name in client.read("list").split() if name.startswith("EtherMirror"))
    )
    handlers = dict(line.split("\t") for line in client.read("s.handlers").splitlines())
    assert handlers == {"switch": "rw", "class": "r", "name": "r", "config": "r", "ports": "r", "handlers": "r"}
    count, *names = client.read("list").splitlines()
    assert int(count) == len(names) and {"cs", "in", "n", "s", "right", "held"} <= set(names)
    # By number, from 1.
    assert client.read(f"{names.index('s') + 1}.name") == "s"
    assert client.read("version").startswith("Turnpike ") and client.read("0.version") == client.read(".version")
    assert "s :: Switch(0);" in client.read("config") and "s [2] -> [0] d;" in client.read("flatconfig")
    assert "Switch" in client.read("classes").splitlines()
    assert client.read("cs.port") == "7777"
    # The configuration that it prints is one.
    text = client.read("flatconfig")
    file = wires.router.directory / "again.click"
    file.write_text(text)
    assert wires.router.command("plan", "--click", file).returncode == 0
    wires.router.stop()


def test_mistakes_have_clicks_statuses(lab):
    wires = Wires(lab, **click(SORTER))
    client = ControlSocket(wires.inside)
    for command, status, message in (
        ("READ x.count", 510, "No element named 'x'"),
        ("READ s.count", 511, "No handler named 's.count'"),
        ("READ nothing", 511, "No handler named 'nothing'"),
        ("READ in.reset", 530, "Handler 'in.reset' write-only"),
        ("WRITE in.count 3", 530, "Handler 'in.count' read-only"),
        ("CHECKREAD in.count", 200, "Read handler 'in.count' OK"),
        ("CHECKREAD in.reset", 511, "Handler 'in.reset' not readable"),
        ("CHECKWRITE in.count", 511, "Handler 'in.count' not writable"),
        ("CHECKWRITE in.reset", 200, "Write handler 'in.reset' OK"),
        ("CHECKWRITE x.y", 510, "No element named 'x'"),
        ("READ", 500, "Wrong number of arguments"),
        ("FROB", 501, "Command 'FROB' unimplemented"),
        ("LLRPC in#c0040001", 501, "Cannot call LLRPC 'in#c0040001' remotely"),
    ):
        assert client.ask(command) == (status, [message]), command
    assert client.ask("WRITE s.switch 3") == (520, ["Write handler 's.switch' error:", "output must be < 3"])
    assert client.ask("WRITE s.switch left")[0] == 520
    status, messages = client.ask("HELP")
    assert status == 200 and any("READUNTIL" in message for message in messages)
    client.send("READDATA in.count 3\r\nabc")
    assert client.status()[0] == 200 and client.data() == "0"
    client.send("WRITEUNTIL in.reset END\r\nx\r\nEND")
    assert client.status()[0] == 200
    assert client.ask("QUIT") == (200, ["Goodbye!"])
    assert client.line() == ""
    wires.router.stop()


def test_a_switch_moves_packets_under_traffic_and_none_is_lost(lab):
    wires = Wires(lab, **click(SORTER), calm=True)
    change = Change(wires.router)
    client = ControlSocket(wires.inside)
    total, sent, stopped = 400, 0, threading.Event()

    def traffic():
        nonlocal sent
        while sent < total:
            wires.left.send(frame(sent % 100))
            sent += 1
        stopped.set()

    sender = threading.Thread(target=traffic)
    sender.start()
    to = 0
    while not stopped.is_set():
        to = 1 - to
        client.write("s.switch", to)
        assert client.read("s.switch") == str(to)
    sender.join()
    came = change(received=total)
    assert came == {"received": total, "sent": total}, came
    counts = int(client.read("right.count")), int(client.read("left.count"))
    assert sum(counts) == total and client.read("in.count") == str(total)
    assert len(wires.right.expect(counts[0])) == counts[0] and len(wires.left.expect(counts[1])) == counts[1]
    # So do counts of elements without a step, which former graphs have counted.
    assert {element["name"]: element["count"] for element in wires.router.show("click")}["n"] == total
    # The history has the configurations of files only, and an apply sets what its file says.
    assert len(wires.router.show("history")) == 1
    client.write("s.switch", "1")
    file = wires.router.directory / "same.click"
    file.write_text(SORTER)
    text = wires.router.command("plan", "--click", file, check=False)
    assert text.returncode == 2 and "switch" in text.stdout
    wires.router.command("apply", "--click", file)
    assert client.read("s.switch") == "0" and client.read("in.count") == str(total)
    wires.router.stop()


def test_queues_and_sources_have_their_handlers(lab):
    data = ethernet(HOST_B_MAC, RIGHT_MAC, 0x88B5, pattern(46))
    text = SORTER + f"""
    src :: RatedSource(\\<{data.hex()}>, 1000, 10, false) -> made :: Counter -> sample :: RandomSample(1)
      -> Queue -> ToDevice(tp-right);
    lim :: RatedSplitter(5000); FromDevice(tp-none) -> lim; lim[0] -> Discard; lim[1] -> Discard;
    """.replace("FromDevice(tp-none)", "Idle")
    wires = Wires(lab, **click(text), calm=True)
    client = ControlSocket(wires.inside)
    assert (client.read("src.active"), client.read("src.count"), client.read("src.limit")) == ("false", "0", "10")
    client.write("src.active", "true")
    assert wires.right.expect(10) == [data] * 10
    assert client.read("src.count") == client.read("made.count") == "10"
    client.write("src.rate", "500")
    client.write("src.limit", "15")
    assert wires.right.expect(5) == [data] * 5
    assert (client.read("src.rate"), client.read("src.count")) == ("500", "15")
    client.write("sample.drop_prob", "1")
    assert client.read("sample.sampling_prob") == "0"
    client.write("src.limit", "20")
    assert wait_for(lambda: client.read("sample.drops") == "5")
    assert client.ask("WRITE src.rate many")[0] == 520
    # Packets beyond the capacity are dropped; behind those that may leave at once, one leaves in more than a minute.
    assert (client.read("held.capacity"), client.read("held.length"), client.read("sh.rate")) == ("3", "0", "1Bps")
    sent = 0
    while client.read("held.length") != "3":
        wires.right.send(frame())
        sent += 1
    wires.right.send(*[frame(number) for number in range(40)])
    assert wait_for(lambda: client.read("other.count") == str(sent + 40))
    assert (client.read("held.length"), client.read("held.highwater_length")) == ("3", "3")
    drops = int(client.read("held.drops"))
    assert drops + int(client.read("d2.count")) + 3 == sent + 40 and drops >= 40
    client.write("held.capacity", "30")
    client.write("held.reset_counts")
    assert client.read("held.drops") == "0" and client.read("held.capacity") == "30"
    assert client.read("held.length") == "3"
    client.write("sh.rate", "1000000")
    assert wait_for(lambda: client.read("held.length") == "0")
    assert wait_for(lambda: int(client.read("d2.count")) + drops == sent + 40)
    wires.router.stop()


def test_schedulers_meters_and_sources_have_their_handlers(lab):
    data = ethernet(HOST_B_MAC, RIGHT_MAC, 0x88B5, pattern(46)).hex()
    text = SOCKET + f"""
    one :: RatedSource(\\<{data}>, 1000, 20, false) -> m :: Meter(100000, 200000) -> a :: Queue(50)
        -> red :: RED(20, 40, 0.02) -> [0] p :: PullSwitch(-1);
    m[1] -> Discard; m[2] -> Discard;
    two :: TimedSource(0.01, \\<{data}>, LIMIT 10, ACTIVE false) -> b :: Queue -> [1] p;
    p -> [0] st :: StrideSched(5, 7) -> sh :: Shaper(1000) -> u :: Unqueue -> e :: EtherEncap(0x88b5, 2:0:0:0:0:1, 2:0:0:0:0:2)
        -> pr :: Print(ACTIVE false) -> len :: CheckLength(1000) -> d :: Discard;
    Idle -> c :: Queue -> [1] st;
    FromDevice(tp-left) -> drop :: DropBroadcasts -> Discard; Idle -> ToDevice(tp-right);
    """
    wires = Wires(lab, **click(text), calm=True)
    client = ControlSocket(wires.inside)
    client.write("one.active", "true")
    assert wait_for(lambda: client.read("a.length") == "20")
    assert float(client.read("m.rate")) > 0
    assert client.read("m.meters") == "100000\n200000\n"
    # The switch is off, then leads one queue on, then the other.
    assert (client.read("p.switch"), client.read("d.count")) == ("-1", "0")
    client.write("p.switch", "0")
    assert wait_for(lambda: client.read("d.count") == client.read("u.count") == "20")
    client.write("u.reset")
    assert (client.read("u.count"), client.read("d.count")) == ("0", "20")
    client.write("p.switch", "1")
    assert (client.read("two.interval"), client.read("two.limit")) == ("0.01", "10")
    client.write("two.active", "true")
    assert wait_for(lambda: client.read("d.count") == "30")
    assert client.ask("WRITE p.switch 2") == (520, ["Write handler 'p.switch' error:", "output must be < 2"])
    # A source begins anew; its queue is emptied.
    client.write("one.reset")
    state = lambda: (client.read("one.count"), client.read("a.length"))
    assert wait_for(lambda: state() == ("20", "20")), state()
    client.write("a.reset")
    assert wait_for(lambda: client.read("a.length") == "0")
    for handler, before, after in (
        ("red.min_thresh", "20", "10"), ("red.max_thresh", "40", "30"), ("red.max_p", "0.02", "0.5"),
        ("st.tickets0", "5", "1"), ("st.tickets1", "7", "0"), ("sh.rate", "1000", "2000"),
        ("e.src", "02-00-00-00-00-01", "02-00-00-00-00-03"), ("e.ethertype", "34997", "2048"),
        ("pr.active", "false", "true"), ("len.length", "1000", "10"),
    ):
        assert client.read(handler) == before, handler
        client.write(handler, after)
        assert client.read(handler) == after, handler
    for wrong in ("red.min_thresh 50", "red.max_p 2", "st.tickets0 x", "sh.rate 0", "e.src x", "two.interval 0"):
        assert client.ask(f"WRITE {wrong}")[0] == 520, wrong
    assert (client.read("red.drops"), client.read("red.min_thresh")) == ("0", "10")
    assert client.ask("READ st.tickets2") == (511, ["No handler named 'st.tickets2'"])
    client.write("two.reset")
    assert wait_for(lambda: "pr: " in wires.router.log())
    assert wait_for(lambda: client.read("len.class") == "CheckLength" and client.read("d.count") == "30")
    wires.left.send(ethernet("ff:ff:ff:ff:ff:ff", HOST_A_MAC, 0x88B5, pattern(46)))
    assert wait_for(lambda: client.read("drop.drops") == "1")
    wires.router.stop()


def test_tables_of_an_ip_router_are_read_and_changed(lab):
    text = (ROOT / "examples/click/ip-router.click").read_text()
    text = SOCKET + text.replace("eth1", "tp-left").replace("eth2", "tp-right")
    hosts = Hosts(lab, **click(text))
    client = ControlSocket(hosts.inside)
    (table,) = [element["name"] for element in hosts.router.show("click") if element["is_route_table"]]
    routes = client.read(f"{table}.table").splitlines()
    assert "10.0.1.0/24 - 1" in routes and "10.0.2.0/24 - 2" in routes, routes
    assert client.read(f"{table}.lookup", "10.0.1.77") == "1"
    hosts.right.run("ip", "address", "add", "203.0.113.1/32", "dev", "eth0")
    client.write(f"{table}.add", "203.0.113.0/24 10.0.2.2 2")
    assert client.read(f"{table}.lookup", "203.0.113.1") == "2 10.0.2.2"
    hosts.left.run("ping", "-c", "2", "-W", "2", "203.0.113.1")
    assert client.ask(f"WRITE {table}.add 203.0.113.0/24 10.0.1.2 1")[0] == 520
    assert client.ask(f"WRITE {table}.add 192.0.2.0/24 10.0.1.1 1")[0] == 520
    # All lines or none.
    client.send(f"WRITEUNTIL {table}.ctrl END\r\nremove 203.0.113.0/24\r\nremove 192.0.2.0/24\r\nEND")
    status, messages = client.status()
    assert status == 520 and "not found" in messages[1]
    hosts.left.run("ping", "-c", "1", "-W", "2", "203.0.113.1")
    client.write(f"{table}.remove", "203.0.113.0/24")
    assert hosts.left.run("ping", "-c", "1", "-W", "1", "203.0.113.1", check=False).returncode != 0
    (arp, *_) = [name for name in client.read("list").split() if client.read(f"{name}.class") == "ARPQuerier"]
    assert any(line.startswith("10.0.1.2 1 ") for line in client.read(f"{arp}.table").splitlines())
    client.write(f"{arp}.insert", "10.0.1.9 02-00-00-00-00-09")
    assert wait_for(lambda: "10.0.1.9 1 02-00-00-00-00-09" in client.read(f"{arp}.table"))
    client.write(f"{arp}.delete", "10.0.1.9")
    assert wait_for(lambda: "10.0.1.9" not in client.read(f"{arp}.table"))
    hosts.router.stop()


def test_a_lookup_in_a_graph_changes_its_routes(lab):
    text = SOCKET + """
    FromDevice(tp-left) -> CheckIPHeader(14) -> rt :: StaticIPLookup(10.0.2.0/24 0);
    rt[0] -> Queue -> ToDevice(tp-right);
    rt[1] -> EtherMirror -> Queue -> ToDevice(tp-left);
    """
    wires = Wires(lab, **click(text))
    client = ControlSocket(wires.inside)
    assert (client.read("rt.table"), client.read("rt.lookup", "10.0.2.2")) == ("10.0.2.0/24 - 0\n", "0")
    wires.left.send(frame())
    assert wires.right.expect(1) == [frame()]
    client.write("rt.set", "10.0.2.0/24 1")
    wires.left.send(frame())
    assert wires.left.expect(1) == [mirrored(frame())]
    client.write("rt.remove", "10.0.2.0/24")
    assert (client.read("rt.table"), client.read("rt.lookup", "10.0.2.2")) == ("", "-1")
    assert client.ask("WRITE rt.add 10.0.2.0/24 2") == (520, ["Write handler 'rt.add' error:", "bad OUTPUT"])
    wires.router.stop()


def refuses(namespace, port):
    try:
        ControlSocket(namespace, port, greeted=False).close()
    except ConnectionRefusedError:
        return True
    return False


def test_sockets_come_move_and_go(lab):
    wires = Wires(lab, **click(SORTER), calm=True)
    router = wires.router
    path = router.directory / "cs"

    def apply(sockets):
        file = router.directory / "next.click"
        file.write_text(SORTER.replace(SOCKET, sockets))
        return router.command("apply", "--click", file)

    first = ControlSocket(wires.inside)
    # A socket that stays keeps its clients.
    apply(SOCKET + f"u :: ControlSocket(UNIX, {path});\n")
    assert first.read("u.filename") == str(path)
    mode = path.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    unix = ControlSocket(path=path)
    assert unix.read("cs.port") == "7777"
    # One with other settings begins anew, on the same address.
    apply("cs :: ControlSocket(TCP, 7777, READONLY true);\n")
    assert first.line() == "" and unix.line() == "" and not path.exists()
    reader = ControlSocket(wires.inside)
    assert reader.read("s.switch") == "0"
    assert reader.ask("WRITE s.switch 1") == (530, ["Permission denied for 's.switch'"])
    assert reader.ask("CHECKWRITE s.switch") == (530, ["Permission denied for 's.switch'"])
    assert reader.ask("WRITE s.class x") == (511, ["Handler 's.class' not writable"])
    # An address in use: everything stays.
    with wires.inside.entered(), socket.create_server(("127.0.0.1", 7778)):
        file = router.directory / "busy.click"
        file.write_text(SORTER.replace("7777", "7778"))
        error = refused(router, "apply", "--click", file)
        assert "127.0.0.1:7778: cannot listen" in error and "nothing was changed" in error
    assert reader.read("s.switch") == "0"
    apply("cs :: ControlSocket(TCP, 7779);\n")
    assert wait_for(lambda: refuses(wires.inside, 7777)) and reader.line() == ""
    assert ControlSocket(wires.inside, 7779).read("cs.port") == "7779"
    apply("")
    assert wait_for(lambda: refuses(wires.inside, 7779))
    router.stop()


def test_a_file_at_the_path_of_a_socket_is_nobodys_to_replace(lab):
    wires = Wires(lab, **click(SORTER))
    # Paths of sockets are short.
    tmp_path = wires.router.directory
    precious = tmp_path / "precious"
    precious.write_text("kept")
    link = tmp_path / "link"
    link.symlink_to(precious)
    for path in (precious, link):
        file = tmp_path / "next.click"
        file.write_text(SORTER.replace(SOCKET, f"ControlSocket(UNIX, {path});\n"))
        assert "a file that is not a socket" in refused(wires.router, "apply", "--click", file)
    # That of the API has a router.
    file.write_text(SORTER.replace(SOCKET, f"ControlSocket(UNIX, {wires.router.socket});\n"))
    assert "a router is running there already" in refused(wires.router, "apply", "--click", file)
    assert precious.read_text() == "kept" and link.is_symlink()
    # A stale socket is replaced.
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    file.write_text(SORTER.replace(SOCKET, f"ControlSocket(UNIX, {stale});\n"))
    wires.router.command("apply", "--click", file)
    assert ControlSocket(path=stale).read("s.switch") == "0"
    wires.router.stop()
    assert not stale.exists()


def test_a_converted_file_has_its_socket_and_more_settings(lab):
    wires = Wires(lab, **click(SORTER))
    first = ControlSocket(wires.inside)
    file = wires.router.directory / "sorter.click"
    file.write_text(SORTER)
    lua = wires.router.directory / "sorter.lua"
    done = subprocess.run([binary(), "convert", "click", file], capture_output=True, text=True, check=True)
    socket_of = 'turnpike.control_socket "cs" { listen = "127.0.0.1:7777"'
    assert socket_of in done.stdout
    lua.write_text(done.stdout)
    assert wires.router.command("plan", lua).returncode == 0
    assert first.read("s.switch") == "0"
    # Without a command in time, a client is disconnected, also in the middle of one.
    lua.write_text(done.stdout.replace(socket_of, socket_of + ", idle_s = 1, clients = 2"))
    wires.router.command("apply", lua)
    assert first.is_over()
    silent, slow = ControlSocket(wires.inside), ControlSocket(wires.inside)
    slow.send(b"WRITEDATA s.switch 2\r\n1")
    assert ControlSocket(wires.inside).status() == (530, ["2 clients are connected; try later"])
    assert silent.is_over() and slow.is_over()
    assert ControlSocket(wires.inside).read("s.switch") == "0"
    wires.router.stop()


def test_other_users_of_the_machine_are_refused(lab):
    wires = Wires(lab, **click(SORTER))
    program = "exec 3<>/dev/tcp/127.0.0.1/7777; cat <&3"
    done = subprocess.run(
        wires.inside.command("setpriv", "--reuid", "65534", "--clear-groups", "bash", "-c", program),
        capture_output=True, text=True, timeout=20,
    )
    assert "530 user nobody (uid 65534) is not allowed here" in done.stdout, done
    assert ControlSocket(wires.inside).read("s.switch") == "0"
    wires.router.stop()


@pytest.mark.flood
def test_hostile_clients_delay_neither_others_nor_packets(lab):
    wires = Wires(lab, **click(SORTER), calm=True)
    # One that sends byte by byte, one that never ends its line, one that asks and does not read, one that sends data
    # without end, and one that sends what is no command.
    slow = ControlSocket(wires.inside)
    slow.send(b"WRITEDATA s.switch 60000\r\n")
    endless = ControlSocket(wires.inside)
    endless.send(b"x" * 100_000)
    assert endless.status() == (500, ["Line too long"]) and endless.is_over()
    deaf = ControlSocket(wires.inside, receive_buffer=4096)
    deaf.socket.setblocking(False)
    try:
        while deaf.socket.send(b"READ config\r\n" * 100):
            pass
    except BlockingIOError:
        pass
    large = ControlSocket(wires.inside)
    assert large.ask("WRITEDATA s.switch 4000000000")[0] == 521 and large.is_over()
    web = ControlSocket(wires.inside)
    web.send(b"POST / HTTP/1.1\r\nHost: 127.0.0.1:7777\r\n\r\nWRITE stop\r\n")
    assert web.is_over()
    junk = ControlSocket(wires.inside)
    junk.send(os.urandom(50_000))
    client = ControlSocket(wires.inside)
    client.write("s.switch", "1")
    for byte in b"0" * 50:
        slow.send(bytes([byte]))
    wires.left.send(frame())
    assert wires.left.expect(1) == [mirrored(frame())]
    assert client.read("in.count") == "1"
    # So many clients, and no more; those that leave make room.
    more = [ControlSocket(wires.inside, greeted=False) for _ in range(30)]
    answers = []
    for one in more:
        assert one.line() == "Click::ControlSocket/1.3"
        one.socket.settimeout(0.2)
        try:
            answers.append(one.line())
        except TimeoutError:
            answers.append("served")
    assert "530 16 clients are connected; try later" in answers
    for one in more:
        one.close()
    wait_for(lambda: ControlSocket(wires.inside, greeted=False).line() and True)
    assert client.read("s.switch") == "1"
    wires.router.stop()


def test_writes_and_an_apply_do_not_undo_each_other(lab):
    wires = Wires(lab, **click(SORTER))
    clients = [ControlSocket(wires.inside) for _ in range(4)]
    handlers = ("s.switch", "held.capacity", "sh.rate", "s.switch")
    done = threading.Event()

    def write(client, handler):
        value = 1
        while not done.is_set():
            client.write(handler, value % 3 + 1 if handler != "s.switch" else value % 3)
            value += 1
        client.write(handler, "2")

    writers = [threading.Thread(target=write, args=pair) for pair in zip(clients, handlers)]
    for writer in writers:
        writer.start()
    file = wires.router.directory / "next.click"
    for number in range(3):
        file.write_text(SORTER.replace("d2 :: Discard", f"c{number} :: Counter -> d2 :: Discard"))
        wires.router.command("apply", "--click", file)
    done.set()
    for writer in writers:
        writer.join(30)
        assert not writer.is_alive()
    values = [clients[0].read(handler) for handler in handlers]
    assert values == ["2", "2", "2Bps", "2"] and clients[0].read("c2.class") == "Counter"
    assert len(wires.router.show("history")) == 4
    wires.router.stop()


def test_commands_show_and_call_handlers(lab, tmp_path):
    wires = Wires(lab, **click(SORTER.replace(SOCKET, "")))
    router = wires.router
    wires.left.send(frame())
    assert wires.right.expect(1) == [frame()]
    shown = {element["name"]: element for element in router.show("click")}
    assert (shown["in"]["step"], shown["in"]["count"], shown["n"]["step"], shown["n"]["count"]) == ("in", 1, None, 1)
    assert shown["s"]["class"] == "Switch" and ["switch", "rw"] in shown["s"]["handlers"]
    assert any(line.split()[:5] == ["s", "Switch", "step", "s", "1"] for line in router.command("show", "click").stdout.splitlines())
    assert "s.switch (rw)" in router.command("show", "click", "s").stdout
    assert "did you mean" in refused(router, "show", "click", "rigth")
    assert router.command("click", "read", "in.count").stdout == "1\n"
    answer = json.loads(router.command("click", "read", "in.count", "--json").stdout)
    assert (answer["code"], answer["data"]) == (200, "1")
    assert router.command("click", "write", "s.switch", "-1").stdout == "Write handler 's.switch' OK\n"
    assert router.command("click", "read", "s.switch").stdout == "-1\n"
    assert "No element named 'x'" in refused(router, "click", "read", "x.y")
    assert 'audit: uid 0' in router.log() and '"handler":"s.switch"' in router.log()
    # Parts without effect are said by plan and apply as by check.
    file = tmp_path / "notes.click"
    file.write_text(SORTER.replace(SOCKET, "") + "Idle -> lost :: Counter -> Discard;\n")
    note = 'no packets reach element "lost"'
    for command in ("plan", "apply"):
        done = router.command(command, "--click", file, check=False)
        assert note in done.stderr and note not in done.stdout, done
    router.stop()


def test_the_router_ends_by_a_handler(lab):
    wires = Wires(lab, **click(SORTER))
    client = ControlSocket(wires.inside)
    client.write("stop")
    assert client.line() == ""
    wires.router.process.wait(30)
    log = wires.router.stop()
    assert "handler stop: the router ends" in log and "audit: control_socket \"cs\"" in log

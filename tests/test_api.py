"""The API over HTTP: what commands say is what clients get, and nobody gets or does what is not theirs."""

import fcntl
import io
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
from lib.api import JSON, LINES, LUA, Api, Connection, document, operations
from lib.apply import apply, refused
from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, STATIC_NEIGHBOURS, Wires, from_left
from lib.netns import wait_for
from lib.packets import ethernet, ipv4, udp
from lib.router import ROOT, binary
from lib.soak import repeated
from openapi_spec_validator import validate
from scapy.utils import PcapNgReader

CONFIG = """
turnpike.filter "guard" {
  { name = "web", proto = "udp", to_port = 80, state = { "new" } },
  { from_set = "bad", action = "drop" },
  default = "accept",
}
turnpike.prefix_set "bad" { "192.0.2.0/24" }
turnpike.command "echo" { help = "Says it again", run = function(args) return table.concat(args, "-") end }
"""
FILTERED = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "guard",').replace(
    'device = "tp-right",', 'device = "tp-right", filter = "guard",')

# Users and groups that need not exist.
READER, OPERATOR, CHANGER, NOBODY = "70001", "70002", "70003", "70004"
MEMBERS, READERS = "70010", "70011"
ACCESS = f"""
turnpike.access {{ group = "{MEMBERS}", read = {{ "group:{READERS}" }}, operate = {{ "{OPERATOR}" }},
                  configure = {{ "{CHANGER}" }} }}
"""


def socket_of(router):
    return router.directory / "api.sock"


def text_of(router, config="", ports=PORTS, **settings):
    """A configuration with the API at the router's socket."""
    settings = "".join(f', {name} = "{value}"' for name, value in settings.items())
    return ports + STATIC_NEIGHBOURS + config + f'turnpike.api {{ socket = "{socket_of(router)}"{settings} }}\n'


def with_api(lab, config="", ports=PORTS, **settings):
    """Wires whose router serves the API, and a client."""
    wires = Wires(lab)
    apply(wires.router, text_of(wires.router, config, ports, **settings))
    wires.api = Api(socket_of(wires.router))
    # Users of the tests come to the socket.
    wires.router.directory.chmod(0o711)
    return wires


@pytest.fixture(scope="module")
def wires(module_lab):
    return with_api(module_lab, CONFIG, FILTERED)


def to_port(port):
    data = udp("10.0.1.2", "10.0.2.2", 1000, port, b"payload")
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data))


def test_the_document_is_openapi_and_the_same_everywhere(wires):
    validate(document())
    assert wires.api.get("/v1/openapi.json") == document()
    roles = {operation["x-role"] for _, _, operation in operations()}
    assert roles == {"read", "operate", "configure"}


def test_each_resource_is_what_the_command_says(wires):
    wires.left.send(to_port(80))
    wires.right.expect(1)
    wires.router.counters()
    asked = set()
    for method, path, operation in operations():
        # The client's own name and role are no command's.
        if method != "GET" or "{" in path or path == "/v1/session" or any(of["required"] for of in operation["parameters"]):
            continue
        answer = wires.api.get(path)
        shown = operation["operationId"].removeprefix("show_").replace("_", "-")
        if path == "/v1/routes":
            answer, shown = answer["routes"], "routes"
        expected = wires.router._ask({"show": {shown: {}} if shown in ("flows", "overview") else shown})
        assert type(answer) is type(expected), path
        # Times and loads differ, names do not.
        assert json.dumps(answer) and (not isinstance(answer, dict) or answer.keys() == expected.keys()), path
        if shown in ("routes", "vrfs", "sets", "commands", "neighbours", "graph", "history", "summary", "mirrors"):
            assert answer == expected, path
        asked.add(path)
    assert {"/v1/interfaces", "/v1/routes", "/v1/counters", "/v1/filters", "/v1/topology"} <= asked and len(asked) > 22
    assert wires.api.get("/v1/flows?port=80")["total"] == 1
    assert wires.api.get("/v1/flows?port=81")["total"] == 0


def test_resources_with_parameters(wires):
    api, router = wires.api, wires.router
    flow = {"from": "10.0.1.2", "protocol": 6}
    expected = router._ask({"show": {"route": {"address": "10.0.2.2", "flow": flow}}})
    assert api.get("/v1/lookup?address=10.0.2.2&from=10.0.1.2&protocol=6") == expected
    assert api.get("/v1/lookup?address=10.0.2.2")["prefix"] == "10.0.2.2/32"
    question = {"name": "guard", "packet": "udp 192.0.2.9 > 10.0.2.2"}
    verdict = api.get("/v1/filters/guard/verdict?packet=udp+192.0.2.9+%3E+10.0.2.2")
    assert verdict == router._ask({"show": {"filter-verdict": question}}) and verdict["action"] == "drop"
    number = router.show("history")[-1]["number"]
    assert api.get(f"/v1/history/{number}")["number"] == number
    expected = router._ask({"show": {"difference": {"number": 1, "all": True}}})
    assert api.get("/v1/history/1/difference?all=true") == expected
    error = refused(router, "show", "route", "10.0.2.2", "--vrf", "nowhere").strip()
    assert api.refused("GET", "/v1/lookup?address=10.0.2.2&vrf=nowhere") in error


def test_changes_are_those_of_commands(wires):
    api, router = wires.api, wires.router
    route = {"prefix": "198.51.100.0/24", "paths": [{"via": "10.0.2.2"}]}
    assert api.do("POST", "/v1/routes", route)["change"] == "added"
    assert [of["source"] for of in api.get("/v1/routes?prefix=198.51.100.0/24")["routes"]] == ["command"]
    api.do("DELETE", "/v1/routes?prefix=198.51.100.0/24")
    assert api.get("/v1/routes?prefix=198.51.100.0/24")["routes"] == []
    assert "198.51.100.0/24" in api.refused("DELETE", "/v1/routes?prefix=198.51.100.0/24")
    api.do("POST", "/v1/neighbours", {"address": "10.0.2.9", "lladdr": "02:00:00:00:00:09", "port": "right"})
    assert router.neighbour("10.0.2.9")["mac"] == "02:00:00:00:00:09"
    api.do("DELETE", "/v1/neighbours?address=10.0.2.9&port=right")
    assert router.neighbour("10.0.2.9") is None
    elements = lambda: [of["prefix"] for of in api.get("/v1/sets")[0]["elements"]]
    api.do("POST", "/v1/sets/bad/elements", {"elements": ["203.0.113.0/24"], "seconds": 600})
    assert elements() == ["192.0.2.0/24", "203.0.113.0/24"]
    api.do("DELETE", "/v1/sets/bad/elements?elements=203.0.113.0/24")
    assert elements() == ["192.0.2.0/24"]
    api.do("POST", "/v1/filters/guard/rules/web/log", {"seconds": 60})
    assert api.get("/v1/filters")[0]["rules"][0]["logged_s"] > 0
    api.do("DELETE", "/v1/filters/guard/rules/web/log")
    assert "logged_s" not in api.get("/v1/filters")[0]["rules"][0]
    wires.left.send(to_port(80))
    wires.right.expect(1)
    assert wait_for(lambda: api.get("/v1/flows")["total"] > 0, 10)
    api.do("DELETE", "/v1/flows")
    assert api.get("/v1/flows")["total"] == 0
    assert api.do("POST", "/v1/commands/echo", {"args": ["a", "b"]}) == "a-b"
    answer = api.get("/v1/handlers/list")
    assert answer == router._ask({"handler": {"read": {"handler": "list"}}})
    assert api.get("/v1/handlers/none.such/readable")["code"] >= 500
    assert api.do("PUT", "/v1/handlers/none.such", {"value": "1"})["code"] >= 500
    trace = api.do("POST", "/v1/trace", {"packet": "udp 10.0.1.2 > 10.0.2.2 in left ttl 1"})
    assert trace["packets"][0]["end"] == "to the slow path: ttl"
    log = router.log()
    for change in ('{"route":{"add":', '{"set":{"add":', '{"forget-flows":', '{"do":', '{"trace":'):
        assert re.search(r"audit: HTTP, uid 0, pid \d+: " + re.escape(change), log), change


def test_apply_confirm_and_rollback(lab):
    wires = with_api(lab)
    api, router = wires.api, wires.router
    number = lambda: api.get("/v1/history")[-1]["number"]
    before = number()
    text = text_of(router, 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n')
    planned = api.do("POST", "/v1/plan", text, LUA)
    assert "198.51.100.0/24" in json.dumps(planned) and number() == before
    assert planned == api.do("POST", "/v1/plan", {"text": text})
    api.do("POST", "/v1/apply?confirm_s=600&file=/etc/turnpike/new.lua", text, LUA)
    assert api.get("/v1/history")[-1]["file"] == "/etc/turnpike/new.lua"
    assert api.get("/v1/routes?prefix=198.51.100.0/24")["routes"]
    api.do("POST", "/v1/confirm", {})
    assert api.refused("POST", "/v1/confirm", {}) in refused(router, "confirm")
    api.do("POST", "/v1/rollback", {})
    assert not api.get("/v1/routes?prefix=198.51.100.0/24")["routes"]
    # Nobody confirms it.
    api.do("POST", "/v1/apply", {"text": text, "confirm_s": 1})
    assert wait_for(lambda: not api.get("/v1/routes?prefix=198.51.100.0/24")["routes"], 20)
    error = api.refused("POST", "/v1/apply", "turnpike.port 7", LUA)
    assert error.startswith("/api.lua"), error
    assert api.get("/v1/ports")[0]["name"] == "left"
    router.stop()


def test_the_api_is_changed_over_itself(lab):
    wires = with_api(lab)
    api, router = wires.api, wires.router
    other = router.directory / "other.sock"
    moved = text_of(router).replace("api.sock", "other.sock")
    # The answer comes by the socket that goes.
    assert api.do("POST", "/v1/apply", moved, LUA)["number"] == 3
    assert not socket_of(router).exists()
    assert Api(other).get("/v1/history")[-1]["number"] == 3
    Api(other).do("POST", "/v1/rollback", {})
    assert socket_of(router).exists() and not other.exists()
    assert api.get("/v1/ports")
    # The same socket for a group, and an address that is taken.
    assert socket_of(router).stat().st_mode & 0o777 == 0o600
    apply(router, text_of(router, group=MEMBERS))
    about = socket_of(router).stat()
    assert (about.st_mode & 0o777, str(about.st_gid)) == (0o660, MEMBERS)
    with wires.inside.entered(), socket.socket() as taken:
        taken.bind(("127.0.0.1", 8479))
        taken.listen()
        error = api.refused("POST", "/v1/apply", text_of(router, listen="127.0.0.1:8479"), LUA)
    assert "api 127.0.0.1:8479: cannot listen; choose another turnpike.api { listen }" in error
    apply(router, PORTS + STATIC_NEIGHBOURS)
    assert not socket_of(router).exists()
    router.command("rollback")
    assert api.get("/v1/ports")
    # It ends with clients connected, one of them in the middle of an endless answer.
    idle, endless = Connection(socket_of(router)), Connection(socket_of(router))
    idle.connect()
    endless.request("POST", "/v1/capture", "{}", {"Content-Type": JSON})
    assert endless.getresponse().status == 200
    router.stop()


# With SOAK=4, of `make test-long`, a hundred thousand.
ROUTES = repeated(25_000)


def test_many_routes_in_pages(lab):
    wires = Wires(lab, start=False)
    prefixes = [f"{20 + number // 65536}.{number // 256 % 256}.{number % 256}.0/24" for number in range(ROUTES)]
    table = "".join(f"{prefix}\t65000\n" for prefix in prefixes).encode()
    text = PORTS + STATIC_NEIGHBOURS + 'turnpike.import { file = "table", via = "10.0.2.2" }\n'
    wires.router = lab.router(wires.inside, text, files={"table": table})
    apply(wires.router, f'{text}turnpike.api {{ socket = "{socket_of(wires.router)}" }}\n')
    api = Api(socket_of(wires.router))
    assert wait_for(lambda: api.get("/v1/routes/summary")["sources"]["import"]["ipv4"] == ROUTES, 60)
    found, after, pages = [], "", 0
    while after is not None:
        page = api.get(f"/v1/routes?source=import&limit=9999{after and '&after=' + after}")
        assert len(page["routes"]) <= 9999
        found += [route["prefix"] for route in page["routes"]]
        after, pages = page["next"], pages + 1
        # Others are answered in between.
        assert wires.router.show("vrfs")
    assert found == prefixes and pages == ROUTES // 9999 + 1
    assert len(api.get("/v1/routes?source=import")["routes"]) == 1000
    assert len(api.ask("GET", "/v1/routes?source=import&limit=1500", Accept=LINES)[2]) == 1500
    status, _, lines = api.ask("GET", "/v1/routes?source=import", Accept=LINES)
    assert status == 200 and [route["prefix"] for route in lines] == prefixes
    # Clients that do not read hold the router up as little as those that leave.
    silent = [Connection(socket_of(wires.router)) for _ in range(8)]
    for connection in silent:
        connection.request("GET", "/v1/routes", headers={"Accept": LINES})
        assert connection.getresponse().status == 200
    full = "8 places of role configure for lists and captures are taken"
    assert full in api.refused("GET", "/v1/routes", Accept=LINES, status=503)
    assert len(api.get("/v1/routes?limit=5")["routes"]) == 5
    for connection in silent:
        connection.close()
    assert wait_for(lambda: api.ask("GET", "/v1/routes", Accept=LINES)[0] == 200, 30)
    wires.router.stop()


def test_wrong_requests_are_named(wires):
    api = wires.api
    refused = api.refused
    assert "no such resource" in refused("GET", "/v1/rotes", status=404)
    assert "no such resource" in refused("GET", "/v1/../v1/ports", status=404)
    assert "no such resource" in refused("GET", "/v1/%70orts", status=404)
    status, headers, _ = api.ask("DELETE", "/v1/ports")
    assert (status, headers["Allow"]) == (405, "GET")
    for method in ("OPTIONS", "PATCH", "TRACE", "BREW"):
        assert api.ask(method, "/v1/ports")[0] == 405
    known = 'parameter "x": unknown; known: all, longer, prefix, source, vrf'
    assert refused("GET", "/v1/routes?x=1", status=400) == known
    assert refused("GET", "/v1/routes?limit=0", status=400) == 'parameter "limit": "0" is not 1 to 10000'
    assert "given twice" in refused("GET", "/v1/routes?vrf=a&vrf=b", status=400)
    assert "`address`" in refused("GET", "/v1/lookup", status=400)
    assert "no JSON object" in refused("POST", "/v1/routes", "{", JSON, status=400)
    assert "no JSON object" in refused("POST", "/v1/routes", "[]", JSON, status=400)
    assert "no JSON object" in refused("POST", "/v1/routes", "[" * 100_000, JSON, status=400)
    assert '"speed": unknown' in refused("POST", "/v1/routes", {"speed": 1}, status=400)
    assert "missing field" in refused("POST", "/v1/routes", {}, status=400)
    both = refused("POST", "/v1/plan?text=x", {"text": "y"}, status=400)
    assert both == 'parameter "text": given in the body and in the URL'
    assert "not UTF-8" in refused("POST", "/v1/plan", b"\xff", LUA, status=400)
    assert "has no body" in refused("GET", "/v1/ports", {"x": 1}, status=400)
    # No form of a page's is sent without a question before.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", LUA):
        assert "Content-Type" in refused("POST", "/v1/confirm", "{}", kind, status=415)
    assert "Content-Type" in refused("POST", "/v1/apply", "-- x", "text/plain", status=415)
    assert "longer than 1048576 bytes" in refused("POST", "/v1/routes", b" " * (1 << 20) + b"{}", JSON, status=413)
    assert "Origin" in refused("GET", "/v1/ports", Origin="http://attacker.example", status=403)
    assert "Origin" in refused("GET", "/v1/ports", Origin="null", status=403)
    assert "another site" in refused("GET", "/v1/ports", Sec_Fetch_Site="cross-site", status=403)
    assert api.ask("GET", "/v1/ports", Sec_Fetch_Site="none")[0] == 200
    _, headers, _ = api.ask("GET", "/v1/ports")
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("head", [
    "Content-Length: 2\r\nTransfer-Encoding: chunked",
    "Content-Length: 2\r\nContent-Length: 3",
    "Content-Length: +2",
    "Content-Length: 0x2",
    "Transfer-Encoding: identity, chunked, identity",
    "Transfer-Encoding : chunked",
    "Host: y\r\nContent-Length: 2",
    " folded: x",
])
def test_requests_whose_end_is_not_clear_are_refused(wires, head):
    request = f"POST /v1/confirm HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n{head}\r\n\r\n".encode()
    hidden = b"{}GET /v1/ports HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = wires.api.raw(request + b"0\r\n\r\n" + hidden)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 411")) and answer.count(b"HTTP/1.1") == 1, answer


def test_slow_and_many_clients_keep_nobody_out(wires):
    api = wires.api
    slow = [Connection(api.path) for _ in range(200)]
    for connection in slow:
        connection.connect()
        connection.sock.sendall(b"GET /v1/ports HTTP/1.1\r\nHost: localhost\r\nX: ")
    assert api.get("/v1/vrfs")
    # Bodies that do not come hold no place that others need.
    bodies = [Connection(api.path) for _ in range(20)]
    for connection in bodies:
        connection.connect()
        connection.sock.sendall(f"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: {LUA}\r\n"
                                "Content-Length: 1000\r\n\r\n".encode())
    assert api.get("/v1/vrfs")
    assert wires.router.show("vrfs")
    assert api.ask("POST", "/v1/plan", text_of(wires.router, CONFIG, FILTERED), LUA)[0] == 200
    head = b"GET /v1/ports HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20)
    assert not api.raw(head).startswith(b"HTTP/1.1 200")
    answers = []

    def flood():
        connection = Connection(api.path)
        for _ in range(50):
            connection.request("GET", "/v1/counters")
            response = connection.getresponse()
            response.read()
            answers.append(response.status)

    threads = [threading.Thread(target=flood) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert wires.router.show("vrfs")
    for thread in threads:
        thread.join()
    assert answers == [200] * 800
    for connection in slow + bodies:
        connection.close()


def test_captures_end_with_their_clients(wires):
    def begin(**request):
        connection = Connection(wires.api.path)
        connection.request("POST", "/v1/capture", json.dumps(request), {"Content-Type": JSON})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"] == "application/vnd.tcpdump.pcap"
        return response

    response = begin(interface="left", at="ip4-ttl")
    frames = [to_port(1000 + number) for number in range(5)]
    for frame in frames:
        wires.left.send(frame)
    wires.right.expect(5)
    data = b""
    while data.count(b"enters ip4-ttl") < 5:
        data += response.read1(1 << 16)
    response.close()
    packets = list(PcapNgReader(io.BytesIO(data)))
    assert [bytes(packet) for packet in packets] == frames
    # Each is ended when its client is gone, packets or not.
    captures = [begin(dropped="ip4-checksum") for _ in range(8)]
    full = wires.api.refused("POST", "/v1/capture", {}, status=503)
    assert "8 places of role configure for lists and captures are taken" in full
    for capture in captures:
        capture.close()
    assert wait_for(lambda: wires.api.ask("GET", "/v1/routes", Accept=LINES)[0] == 200, 20)
    for _ in range(3):
        for capture in [begin(dropped="") for _ in range(8)]:
            capture.close()
        assert wait_for(lambda: wires.api.ask("GET", "/v1/routes", Accept=LINES)[0] == 200, 20)
    assert 'step "x"' in wires.api.refused("POST", "/v1/capture", {"at": "x"})


@pytest.mark.parametrize("behind", [b"", b"G"])
def test_traces_and_captures_end_with_their_clients_whatever_they_send(wires, behind):
    def begin(path, body):
        connection = Connection(wires.api.path)
        connection.request("POST", path, body, {"Content-Type": JSON})
        return connection

    trace = begin("/v1/trace", '{"seconds": 3600}')
    busy = lambda: wires.api.ask("POST", "/v1/trace", {"packet": "udp 10.0.1.2 > 10.0.2.2 in left"})[0]
    assert wait_for(lambda: busy() == 422, 20)
    ended = lambda: wires.router.log().count("refused: ended by its client")
    before = ended()
    # No packet comes: nothing is written to those who have left.
    captures = [begin("/v1/capture", '{"dropped":"ip4-checksum"}') for _ in range(8)]
    for connection in captures:
        assert connection.getresponse().status == 200
    for connection in [trace, *captures]:
        connection.sock.sendall(behind)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
    assert wait_for(lambda: busy() == 200, 20)
    assert ended() == before + 1
    assert wait_for(lambda: wires.api.ask("GET", "/v1/routes", Accept=LINES)[0] == 200, 20)


def test_a_change_is_recorded_without_its_client(lab):
    wires = with_api(lab)
    number = lambda: wires.router.show("history")[-1]["number"]
    before = number()
    # It takes a while to read.
    busy = "local n = 0 for i = 1, 5e6 do n = n + #tostring(i) end\n"
    text = text_of(wires.router, busy + 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n').encode()
    connection = Connection(wires.api.path)
    connection.request("POST", "/v1/apply?file=/left.lua", text, {"Content-Type": LUA})
    # The server has taken the request when it answers another that came behind it.
    unread = lambda: int.from_bytes(fcntl.ioctl(connection.sock, termios.TIOCOUTQ, bytes(4)), "little")
    assert wait_for(lambda: unread() == 0, 20)
    assert wires.api.get("/v1/vrfs")
    assert number() == before, "it was too quick to tell"
    connection.close()
    assert wait_for(lambda: number() == before + 1, 30)
    change = re.escape('{"apply":{"file":"/left.lua"}}: done')
    assert wait_for(lambda: re.search(rf"audit: HTTP, uid 0, pid \d+: {change}", wires.router.log()), 20)
    wires.router.stop()


def test_a_capture_says_how_many_packets_it_has_lost(wires):
    connection = Connection(wires.api.path)
    connection.request("POST", "/v1/capture", '{"interface":"left","at":"ip4-ttl","snap":16384}', {"Content-Type": JSON})
    response = connection.getresponse()
    assert response.status == 200
    data = udp("10.0.1.2", "10.0.2.2", 1000, 2000, bytes(1400))
    frame = ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", "10.0.2.2", data))
    entered = lambda: next(of["rx_packets"] for of in wires.router.show("ports") if of["name"] == "left")
    # The client reads nothing: the pieces that wait for it, its socket and the records are full.
    begun, sent = entered(), 0
    while entered() - begun < 6000:
        for _ in range(500):
            wires.left.send(frame)
        sent += 500
        assert sent < 100_000
    text, statistics = b"", struct.pack("=I", 5)
    # The block of statistics, with the option isb_ifdrop.
    found = lambda: re.search(re.escape(statistics) + b".{4}" + bytes(4) + b".{8}" + struct.pack("=HH", 5, 8) + b"(.{8})", text, re.S)
    while not found():
        text += response.read1(1 << 16)
    assert 0 < int.from_bytes(found()[1], sys.byteorder) <= entered() - begun
    response.close()
    connection.close()


def by_user(user, *argv, groups=()):
    """A command of a user that need not exist."""
    groups = [f"--groups={','.join(groups)}"] if groups else ["--clear-groups"]
    return subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", *groups, *map(str, argv)],
                          capture_output=True, text=True, timeout=60)


def turnpike(router, user, *words, groups=(MEMBERS,)):
    return by_user(user, binary(), *words, "--socket", router.socket, groups=groups)


def curl(router, user, *words, groups=(MEMBERS,)):
    """The status and the error's text."""
    done = by_user(user, "curl", "-s", "-w", "\n%{http_code}", "--unix-socket", socket_of(router), *words, groups=groups)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body).get("detail") if status not in ("200", "000") else body


def test_roles_by_user_and_group(lab):
    wires = with_api(lab, ACCESS + CONFIG, FILTERED, group=MEMBERS)
    router = wires.router
    config = router.directory / "other.lua"
    config.write_text(text_of(router, ACCESS + CONFIG, FILTERED, group=MEMBERS))
    config.chmod(0o644)
    assert router.socket.stat().st_mode & 0o777 == 0o660
    # Each request by its role, on the control socket and over HTTP.
    url = "http://localhost/v1"
    post = lambda path, data="{}": ["-H", f"Content-Type: {JSON}", "-d", data, f"{url}/{path}"]
    asked = {
        "read": (["show", "vrfs"], [f"{url}/vrfs"]),
        "operate": (["do", "echo", "x"], post("commands/echo", '{"args":["x"]}')),
        "configure": (["plan", config], post("rollback", '{"to":1000000}')),
    }
    who = {(READER, (MEMBERS, READERS)): 1, (OPERATOR, (MEMBERS,)): 2, (CHANGER, (MEMBERS,)): 3, (NOBODY, (MEMBERS,)): 0}
    for (user, groups), roles in who.items():
        for rank, (role, (words, url_words)) in enumerate(asked.items()):
            done = turnpike(router, user, *words, groups=groups)
            status, text = curl(router, user, *url_words, groups=groups)
            if rank < roles:
                assert done.returncode in (0, 2) and status in (200, 422), (user, role, done, status, text)
                assert "may not" not in done.stderr and "may not" not in text
            else:
                assert done.returncode == 1 and status == 403, (user, role, done, status)
                assert re.search(rf"user {user} may not [\w ]+: needs role {role} \(", done.stderr), done
                assert text in done.stderr or role == "configure", (text, done.stderr)
    # The error says who may.
    status, text = curl(router, READER, *post("apply"), groups=(MEMBERS, READERS))
    assert text == f"user {READER} may not apply: needs role configure (user {CHANGER})"
    # A group of that number, or none: not even a connection.
    assert "permission denied" in turnpike(router, NOBODY, "show", "vrfs", groups=()).stderr
    assert curl(router, NOBODY, f"{url}/vrfs", groups=())[0] == 0
    assert turnpike(router, NOBODY, "show", "vrfs", groups=(MEMBERS, CHANGER)).returncode == 1
    assert wait_for(lambda: re.search(rf"audit: uid \d+, pid \d+: .*refused: user \d+ may not", router.log()), 10)
    # At most a line a second, of both.
    logged = lambda: re.search(r"audit: HTTP, uid \d+, pid \d+: [\w ]+: refused: user \d+ may not", router.log())
    assert wait_for(lambda: curl(router, NOBODY, f"{url}/vrfs")[0] == 403 and logged(), 10)
    # A role that is withdrawn counts for the next request of a connection that is open.
    script = ("import socket, sys, json\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nf = s.makefile('rw')\n"
              "for _ in range(2):\n f.write('{\"show\":\"vrfs\"}\\n'); f.flush()\n print(f.readline(), flush=True)\n input()\n")
    held = subprocess.Popen(
        ["setpriv", f"--reuid={READER}", f"--regid={READER}", f"--groups={MEMBERS},{READERS}", "/usr/bin/python3", "-c",
         script, str(router.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert "ok" in json.loads(held.stdout.readline())
    held.stdout.readline()
    apply(router, text_of(router, ACCESS.replace(f'"group:{READERS}"', ""), group=MEMBERS))
    held.stdin.write("\n")
    held.stdin.flush()
    assert "needs role read" in json.loads(held.stdout.readline())["error"]
    held.kill()
    held.wait()
    # A user without a role is answered and leaves; a user has eight places, and others have theirs.
    script = ("import socket, sys\nall = [socket.socket(socket.AF_UNIX) for _ in range(9)]\n"
              "for s in all: s.connect(sys.argv[1])\ns = all[0]\nprint(all[8].recv(1000), flush=True)\n"
              "input()\ns.sendall(b'{\"show\":\"vrfs\"}\\n' * 2)\nprint(s.makefile().read().count('needs role read'), flush=True)\n")
    held = subprocess.Popen(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={MEMBERS}", "/usr/bin/python3", "-c", script,
         str(router.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert "too many clients are connected" in held.stdout.readline()
    assert turnpike(router, OPERATOR, "show", "vrfs").returncode == 0
    held.stdin.write("\n")
    held.stdin.flush()
    assert held.stdout.readline() == "1\n"
    assert held.wait(30) == 0
    # Back, and away: the socket is its owner's alone.
    router.command("rollback")
    assert turnpike(router, READER, "show", "vrfs", groups=(MEMBERS, READERS)).returncode == 0
    apply(router, text_of(router))
    assert router.socket.stat().st_mode & 0o777 == 0o600
    unknown = refused(router, "apply", _write(router, 'turnpike.access { read = { "group:nobody-here" } }\n'))
    assert 'access: read: group "nobody-here" unknown' in unknown
    router.stop()


def test_a_holder_of_a_role_that_is_gone_keeps_no_router_from_starting(lab):
    access = f'turnpike.access {{ read = {{ "group:gone-since" }}, operate = {{ "gone-too", "{OPERATOR}" }} }}\n'
    wires = Wires(lab, start=False)
    router = wires.router = lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS + access)
    for name in ("group \"gone-since\"", "user \"gone-too\""):
        assert f"access: no role for it: {name} unknown" in router.log()
    check = lambda config: subprocess.run(
        [binary(), "check", _write(router, config)], capture_output=True, text=True, timeout=60).stderr
    # A new text is to be right, and so is a check.
    changed = access.replace(OPERATOR, READER)
    assert 'access: operate: user "gone-too" unknown' in refused(router, "apply", _write(router, changed))
    assert 'access: read: group "gone-since" unknown' in check(changed)
    # The way back is open.
    apply(router, PORTS + STATIC_NEIGHBOURS)
    router.command("rollback")
    assert router.show("history")[-1]["origin"] == "rollback to 1"
    router.stop()


def _write(router, config):
    file = router.directory / "unknown.lua"
    file.write_text(PORTS + config)
    return file


class Tcp:
    """Connections to the API within a namespace."""

    def __init__(self, namespace, port=8479):
        self.namespace, self.port = namespace, port

    def __call__(self):
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with self.namespace.entered():
            connection.connect()
        return connection


def test_users_of_the_machine_by_tcp(lab):
    wires = with_api(lab, ACCESS, listen="127.0.0.1:8479")
    api = Api(None, Tcp(wires.inside))
    assert api.get("/v1/vrfs") == wires.api.get("/v1/vrfs")
    # The name of a page that leads here for a moment.
    for host in ("attacker.example", "attacker.example:8479", "10.0.1.1:8479", ""):
        assert "not this service's" in api.refused("GET", "/v1/ports", Host=host, status=421)
    for host in ("localhost:8479", "127.0.0.1", "[::1]:8479"):
        assert api.ask("GET", "/v1/ports", Host=host)[0] == 200
    url = "http://127.0.0.1:8479/v1/vrfs"
    inside = ["ip", "netns", "exec", wires.inside.name]

    def status(user):
        done = subprocess.run([*inside, "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "curl", "-s", "-o",
                               "/dev/null", "-w", "%{http_code}", url], capture_output=True, text=True, timeout=60)
        return done.stdout

    assert (status(OPERATOR), status(NOBODY)) == ("200", "403")
    # More than this machine is not listened on.
    error = refused(wires.router, "apply", _write(wires.router, 'turnpike.api { listen = "0.0.0.0:8479" }\n'))
    assert "the API is not encrypted" in error
    wires.router.stop()


def test_tokens(lab):
    wires = with_api(lab)
    router, tokens = wires.router, wires.router.directory / "tokens"
    read, configure = "r" * 32, "c" * 40
    text = text_of(router, listen="127.0.0.1:8479", token_file=tokens)
    file = router.directory / "with.lua"
    file.write_text(text)
    assert "token_file" in refused(router, "apply", file) and "No such file" in refused(router, "apply", file)
    tokens.write_text(f"read {read}\nconfigure {configure}\n")
    tokens.chmod(0o644)
    assert "mode 644: others can read it; chmod 600" in refused(router, "apply", file)
    tokens.chmod(0o600)
    apply(router, text)
    api = Api(None, Tcp(wires.inside))
    bearer = lambda token: f"Bearer {token}"
    session = {"client": "the token of role read", "role": "read"}
    assert api.get("/v1/session", Authorization=bearer(read)) == session
    assert api.ask("GET", "/v1/vrfs", Authorization=bearer(read))[0] == 200
    began = time.monotonic()
    for wrong in (bearer(read[:-1]), bearer(read + "r"), bearer(""), f"Basic {read}", read):
        status, headers, answer = api.ask("GET", "/v1/vrfs", Authorization=wrong)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), answer
    # Nobody guesses fast: each answer is held back.
    assert time.monotonic() - began >= 5 * 0.5
    assert re.search(r"audit: HTTP, 127\.0\.0\.1:\d+: identification: refused: this token is not one", router.log())
    # Not even root's user does without one, and a path says nothing.
    assert api.ask("GET", "/v1/vrfs")[0] == api.ask("GET", "/v1/none")[0] == 401
    status, _, answer = api.ask("POST", "/v1/rollback", {}, Authorization=bearer(read))
    expected = "the token of role read may not rollback: needs role configure (only root has it: "
    assert status == 403 and answer["detail"].startswith(expected), answer
    status, _, answer = api.ask("POST", "/v1/rollback", {"to": 99}, Authorization=bearer(configure))
    assert status == 422 and "99" in answer["detail"]
    assert "the token of role configure, 127.0.0.1:" in router.log() and configure not in router.log()
    # Withdrawn by its line.
    tokens.write_text(f"read {read}\n")
    assert api.ask("POST", "/v1/rollback", {}, Authorization=bearer(configure))[0] == 401
    assert api.ask("GET", "/v1/vrfs", Authorization=bearer(read))[0] == 200
    # Clients of the socket need none.
    assert wires.api.get("/v1/vrfs")
    router.stop()


def examples():
    """The lines of curl and of turnpike in the documentation."""
    text = (ROOT / "docs/api.md").read_text()
    lines = re.findall(r"^\$ ((?:curl|turnpike api) (?:.*\\\n)*.*)$", text, re.M)
    return [line.replace("\\\n", " ") for line in lines]


def test_the_examples_of_the_documentation(wires, tmp_path):
    assert len(examples()) >= 10
    route = 'turnpike.route "203.0.113.0/24" { via = "10.0.2.2" }\n'
    (tmp_path / "router.lua").write_text(text_of(wires.router, CONFIG + route, FILTERED))
    for line in examples():
        line = line.replace("/run/turnpike-api.sock", str(wires.api.path))
        if line.startswith("turnpike"):
            line = line.replace("turnpike", binary(), 1)
            if "--openapi" not in line and "--api-socket" not in line:
                line += f" --api-socket {shlex.quote(str(wires.api.path))}"
        endless = "/v1/capture" in line
        script = f"timeout 2 {line}" if endless else line
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=not endless, cwd=tmp_path, timeout=60)
        assert done.returncode in ((124,) if endless else (0,)), (line, done)
        if not endless:
            assert not done.stdout.startswith('{"type"'), (line, done)
        else:
            assert done.stdout.startswith(b"\x0a\x0d\x0d\x0a"), done


def test_the_command_and_its_curl_line_say_the_same(wires):
    path = str(wires.api.path)

    def run(*words):
        return subprocess.run([binary(), "api", *words, "--api-socket", path], capture_output=True, text=True, timeout=60)

    for words in (
        ["GET", "/v1/vrfs"],
        ["GET", "/v1/lookup?address=10.0.2.2"],
        ["POST", "/v1/trace", "-d", '{"packet": "udp 10.0.1.2 > 10.0.2.2 in left"}'],
        ["GET", "/v1/routes", "--accept", LINES],
    ):
        line = run(*words, "--curl").stdout
        by_curl = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60).stdout
        by_turnpike = run(*words).stdout
        if LINES in words:
            assert by_curl == by_turnpike
        else:
            assert json.loads(by_curl) == json.loads(by_turnpike)
    failed = run("GET", "/v1/lookup?address=10.0.2.2&vrf=nowhere")
    assert failed.returncode == 1 and "nowhere" in failed.stderr
    assert "no such resource" in run("GET", "/v1/x").stderr
    assert "cannot reach the API" in subprocess.run(
        [binary(), "api", "GET", "/v1/vrfs", "--api-socket", "/nowhere"], capture_output=True, text=True).stderr
    assert os.path.exists(path)

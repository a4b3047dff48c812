"""The dashboard in a browser: each page shows what commands show, and nobody gets by it what is not theirs."""

import contextlib
import http.server
import io
import re
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from lib.api import LUA, Api
from lib.apply import apply
from lib.browser import Browser, Tunnel
from lib.lab import HOST_A_MAC, HOST_B_MAC, PORTS, STATIC_NEIGHBOURS, Hosts, Wires
from lib.netns import wait_for
from lib.traffic import Stream
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgReader
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.common.keys import Keys

# One browser at a time is enough.
pytestmark = pytest.mark.xdist_group("test_dashboard")

ROUTES = 10_000
HOSTILE = "<img src=x onerror=window.hit=1>"
READER, NOBODY, MEMBERS = "70001", "70004", "70010"
PAGES = ["overview", "graph", "interfaces", "routes", "neighbours", "filters", "forwarders", "history", "trace", "capture"]

CONFIG = f"""
turnpike.filter "guard" {{
  {{ name = "web", proto = "udp", to_port = 80 }},
  {{ name = "stream", proto = "udp", to_port = 40000 }},
  {{ name = "{HOSTILE}", proto = "tcp", to_port = 23, action = "drop" }},
  {{ from_set = "bad", action = "drop" }},
  default = "accept",
}}
turnpike.filter "{HOSTILE}" {{ default = "accept" }}
turnpike.prefix_set "bad" {{ "192.0.2.0/24" }}
turnpike.vrf "blue" {{}}
turnpike.vlan "left.10" {{ parent = "left", id = 10, address = "10.9.0.1/24", vrf = "blue" }}
turnpike.import {{ file = "table", via = "10.0.2.2" }}
turnpike.access {{ read = {{ "{READER}" }} }}
"""
QUEUED = PORTS.replace('device = "tp-left",', 'device = "tp-left", filter = "guard",').replace(
    'device = "tp-right",', 'device = "tp-right", queue = { discipline = "codel" },')


def prefix(number):
    return f"{20 + number // 65536}.{number // 256 % 256}.{number % 256}.0/24"


def api_of(router, **settings):
    """The statement of the API with the dashboard."""
    settings = "".join(f', {name} = "{value}"' for name, value in settings.items())
    return f'turnpike.api {{ socket = "{router.directory}/api.sock", dashboard = true{settings} }}\n'


class Site:
    """A router with its dashboard, and the way to it."""

    def __init__(self, router, text, **settings):
        self.router, self.text = router, text + api_of(router, **settings)
        apply(router, self.text)
        self.socket = router.directory / "api.sock"
        self.api = Api(self.socket)
        # Users of the tests come to the socket.
        router.directory.chmod(0o711)


@pytest.fixture(scope="module")
def browser():
    with contextlib.closing(Browser(["attacker.example"])) as browser:
        yield browser


@pytest.fixture
def tunnels():
    """Makes tunnels that end with the test."""
    with contextlib.ExitStack() as made:
        yield lambda *where, **options: made.enter_context(contextlib.closing(Tunnel(*where, **options)))


@pytest.fixture(scope="module")
def site(module_lab):
    """A router between two hosts that forwards a stream of packets."""
    hosts = Hosts(module_lab, start=False)
    table = "".join(f"{prefix(number)}\t65000\n" for number in range(ROUTES)).encode()
    hosts.router = module_lab.router(hosts.inside, QUEUED + CONFIG, files={"table": table})
    site = Site(hosts.router, QUEUED + CONFIG)
    # A name of the client's choice, in the history.
    site.api.do("POST", f"/v1/apply?file={quote(f'/{HOSTILE}.lua')}",
                site.text.replace('"table"', f'"{hosts.router.directory}/table"'), LUA)
    site.hosts = hosts
    stream = Stream(hosts.left, ["10.0.2.2"], rate=500)
    yield site
    stream.stop()


@pytest.fixture
def here(site, browser, tunnels):
    """The browser at the site, as root, in a session of its own."""
    enter(browser, tunnels(site.socket).url)
    yield browser
    assert browser.log() == []


def enter(browser, url):
    """Goes to the dashboard as a browser that was never there."""
    browser.open("about:blank")
    browser.log()
    browser.size(1400, 900)
    browser.prefers("light")
    browser.open(url)


def number(text):
    """A number as pages show it: 12.3 k, 1,234."""
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    words = text.replace(",", "").split()
    return float(words[0]) * units.get(words[1][:1] if len(words) > 1 else "", 1)


# --- what pages show -------------------------------------------------------------------------------

def test_the_overview_shows_what_flows_and_what_is_dropped(site, here):
    site.hosts.left.run("ping", "-n", "-c", 1, "-W", 1, "203.0.113.9", check=False)
    flows = lambda: [row for row in here.rows("Interfaces and their rates")
                     if row["Interface"] == "right" and number(row["Out, packets/s"]) > 100]
    here.wait(flows, "the stream")
    rows = here.rows("Interfaces and their rates")
    assert [(row["Interface"], row["Link"]) for row in rows] == [
        (one["name"], one["link"]) for one in site.router.show("interfaces")]
    dropped = site.router.show("counters")["dropped_by_step"]
    expected = {(reason, step) for step, reasons in dropped.items() for reason, count in reasons.items() if count}
    assert ("no-route", "slow-path") in expected
    here.wait(lambda: {(row["Reason"], row["Step"]) for row in here.rows("Drops by step and reason")} == expected, "drops")
    # The same on a page that was not loaded anew.
    here.run("window.mark = 7")
    total = lambda: number(here.text(".figure .total"))
    before = here.wait(total)
    here.wait(lambda: total() > before, "more packets")
    status = site.router.show("status")
    here.shows(f"{status['version']} · up ")
    here.shows(f"configuration {status['configuration']}")
    assert here.run("return window.mark") == 7
    load = here.one(".loads [role=meter]")
    assert load.get_attribute("aria-label") == "Load of forwarder 0"
    assert 0 <= float(load.get_attribute("aria-valuenow")) <= 100 and "%" in here.text(".loads")


def test_the_graph_is_drawn_and_alive(site, here):
    here.page("graph")
    steps = site.router.show("graph")["steps"]
    names = {step["name"] for step in steps}
    ends = {output["to"] for step in steps for output in step["outputs"]} - {"drop", "slow-path"}
    drawn = lambda: {text for text in here.run("return [...document.querySelectorAll('.node title')].map((one) => one.textContent)")}
    here.wait(lambda: drawn() == names | ends, "steps")
    # Steps do not lie upon each other, and each edge ends at a step.
    boxes = here.run("""return [...document.querySelectorAll('.graph rect')].map((one) => {
        const box = one.getBBox(); return [box.x, box.y, box.x + box.width, box.y + box.height]; })""")
    assert not [(a, b) for a in boxes for b in boxes
                if a is not b and a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]
    edges = {(step["name"], output["to"]) for step in steps for output in step["outputs"]} - {
        (step["name"], to) for step in steps for to in ("drop", "slow-path")}
    assert len(here.all(".graph .edge")) == len(edges)
    # The stream is on the way through ip4-lookup, and on the numbers beside it.
    rates = lambda: [number(text.removesuffix("/s")) for text in here.run(
        "return [...document.querySelectorAll('.graph .rate.busy')].map((one) => one.textContent)")]
    here.wait(lambda: len([one for one in rates() if one > 100]) > 5, "edges with packets")
    here.click("Also those without packets", "label")
    shown = lambda: {(row["Step"], row["Output"], row["To"]) for row in here.rows("Outputs of steps")}
    expected = {(step["name"], output["name"], output["to"]) for step in steps for output in step["outputs"]}
    here.wait(lambda: shown() == expected, "outputs")
    rate = lambda: [number(row["Packets/s"]) for row in here.rows("Outputs of steps")
                    if (row["Step"], row["Output"]) == ("ip4-lookup", "forward")]
    here.wait(lambda: rate()[0] > 100, "a rate")


def test_interfaces_are_a_tree(site, here):
    here.page("interfaces")
    here.wait(lambda: len(here.rows("Interfaces")) == 3)
    rows = {row["Interface"].split()[0]: row for row in here.rows("Interfaces")}
    for one in site.router.show("interfaces"):
        row = rows[one["name"]]
        assert (row["VRF"], row["Addresses"], row["MAC"], row["Link"]) == (
            one.get("vrf") or "–", ", ".join(one["addresses"]), one["mac"], one["link"])
    assert rows["left.10"]["Interface"] == "left.10 vlan 802.1q 10"
    assert here.text(".depth1") == "left.10 vlan 802.1q 10"
    before = number(rows["left"]["Packets in"])
    here.wait(lambda: number(here.rows("Interfaces")[0]["Packets in"]) > before, "packets")
    here.fill("main input[type=search]", "blue")
    here.wait(lambda: [row["VRF"] for row in here.rows("Interfaces")] == ["blue"])
    here.fill("main input[type=search]", "nowhere")
    here.shows('No interface has "nowhere"')


def test_ten_thousand_routes_and_a_search(site, here):
    here.page("routes")
    shown = lambda: [row["Prefix"] for row in here.rows("Routes")]
    expected = [route["prefix"] for route in site.router.show("routes")]
    assert len(expected) > ROUTES
    here.wait(lambda: shown() == expected[:100], "the first page")
    here.shows("10,0")
    here.click("Next ›")
    here.wait(lambda: shown() == expected[100:200], "the second page")
    here.shows("page 2")
    # The address has the place: it may be kept, and the browser goes back by it.
    here.driver.back()
    here.wait(lambda: shown() == expected[:100], "back")
    here.fill("input[name=q]", f"{prefix(9000)}{Keys.ENTER}")
    here.wait(lambda: shown() == [prefix(9000)], "one prefix")
    assert here.rows("Routes")[0]["Way"] == "via 10.0.2.2 on right"
    here.fill("input[name=q]", f"20.1.0.0/16{Keys.ENTER}")
    here.wait(lambda: shown() == [prefix(number) for number in range(256, 356)], "prefixes within")
    address = prefix(9000).replace(".0/24", ".77")
    here.fill("input[name=q]", f"{address}{Keys.ENTER}")
    here.shows(f"{address}: unicast by {prefix(9000)} of import")
    assert "via 10.0.2.2 on right" in here.text(".lookup") and shown() == [prefix(9000)]
    here.fill("input[name=q]", f"203.0.113.9{Keys.ENTER}")
    here.shows("203.0.113.9: no route")
    here.fill("input[name=q]", f"1.2.3.4/99{Keys.ENTER}")
    here.wait(lambda: "1.2.3.4/99" in here.text(".problem"), "an error")
    assert not shown()
    here.fill("input[name=q]", Keys.ENTER)
    here.wait(lambda: shown() == expected[:100] and not here.text(".problem"), "all routes again")
    here.run("const vrf = document.querySelector('select[name=vrf]'); vrf.value = 'blue'; vrf.dispatchEvent(new Event('change'))")
    blue = [route["prefix"] for route in site.router.show("routes", "--vrf", "blue")]
    here.wait(lambda: shown() == blue, "another VRF")
    # A refusal that is the user's is no error of the page.
    assert all("422" in line or "400" in line for line in here.log())


def test_neighbours_filters_and_forwarders(site, here):
    here.page("neighbours")
    neighbours = lambda: {(one["address"], one["port"], one["mac"] or "–") for one in site.router.show("neighbours")}
    assert ("10.0.2.2", "right", HOST_B_MAC) in neighbours()
    here.wait(lambda: {(row["Address"], row["Port"], row["MAC"]) for row in here.rows("Neighbours")} == neighbours())
    here.fill("main input[type=search]", HOST_A_MAC)
    here.wait(lambda: {row["MAC"] for row in here.rows("Neighbours")} == {HOST_A_MAC})
    here.page("filters")
    rules = lambda: here.rows("Rules of guard")
    here.wait(lambda: len(rules()) == 5 and number(rules()[1]["Packets/s"]) > 100, "hits")
    (guard,) = [one for one in site.router.show("filters") if one["name"] == "guard"]
    for row, rule in zip(rules(), guard["rules"]):
        assert row["Rule"].split()[0] == str(rule["number"]) and (rule["name"] or "") in row["Rule"]
        assert (row["Matches"], row["Action"]) == (rule["matches"], rule["action"])
    assert number(rules()[1]["Packets"]) > 0 and rules()[1]["Last packet"] in ("now", "1 s ago")
    assert "received on left" in here.text() and "Set bad" not in here.text()
    here.click("Show sets of prefixes")
    here.shows("Set bad")
    assert "192.0.2.0/24" in here.text()
    here.fill("main form input", f"udp 192.0.2.9 > 10.0.2.2 in left{Keys.ENTER}")
    here.shows("drop: rule 4")
    here.page("forwarders")
    here.wait(lambda: here.rows("Forwarders") and number(here.rows("Forwarders")[0]["Packets/s"]) > 100, "a forwarder")
    (forwarder,) = site.router.show("forwarders")["forwarders"]
    (row,) = here.rows("Forwarders")
    assert (row["Forwarder"], row["Core"], row["Receives from"]) == (
        str(forwarder["number"]), str(forwarder["core"]), ", ".join(forwarder["rx"]))
    (queue,) = site.router.show("queues")
    here.wait(lambda: [(row["Interface"], row["Class"]) for row in here.rows("Queues of interfaces")] == [
        (queue["interface"], one["name"]) for one in queue["classes"]])


def test_a_packet_made_by_hand_is_traced(site, here):
    here.page("trace")
    packet = "udp 10.0.1.2 > 10.0.2.2 in left ttl 1"
    here.fill("input[name=packet]", f"{packet}{Keys.ENTER}")
    here.shows("to the slow path: ttl")
    traced = site.api.do("POST", "/v1/trace", {"packet": packet})["packets"][0]
    steps = here.run("return [...document.querySelectorAll('.steps > li')].map((one) => one.firstChild.textContent + one.childNodes[1].textContent)")
    assert steps == [f"{step['step']} → {step['output']}" for step in traced["steps"]] and len(steps) > 4
    for note in [note for step in traced["steps"] for note in step["notes"]]:
        assert note in here.text(".steps")
    here.fill("input[name=packet]", f"nonsense{Keys.ENTER}")
    here.wait(lambda: "nonsense" in here.text(".problem"), "an error")
    # Those that come.
    here.fill("input[name=rule]", "proto=udp to_port=40000")
    here.fill("input[name=packets]", "2")
    here.click("Trace what comes")
    here.shows("2 packets")
    assert len(here.all(".end")) == 2 and "sent on right" in here.text()
    assert all("422" in line for line in here.log())


def test_a_capture_is_downloaded(site, here, tmp_path):
    here.page("capture")
    here.download(tmp_path)
    here.wait(lambda: len(here.all("select[name=interface] option")) == 4, "interfaces")
    here.fill("input[name=rule]", "proto=udp to_port=40000")
    here.click("Start")
    here.wait(lambda: (found := re.search(r"Capturing for .*: (\S+ k?B)", here.text("form"))) and number(found[1]) > 1000, "packets")
    here.click("Stop")
    here.shows("Nothing is captured.")
    here.run("document.querySelector('.files a').click()")
    file = here.wait(lambda: list(tmp_path.glob("turnpike-*.pcapng"))[0], "a file")
    data = here.wait(lambda: file.read_bytes(), "its content")
    packets = list(PcapNgReader(io.BytesIO(data)))
    assert len(packets) > 5 and {Ether(bytes(packet))[UDP].dport for packet in packets} == {40000}
    # The router has ended it.
    for _ in range(3):
        here.click("Start")
        here.wait(lambda: "Capturing for" in here.text("form"), "again")
        here.page("trace")
        here.shows("A packet made by hand")
        here.page("capture")
    assert wait_for(lambda: all(site.api.ask("GET", "/v1/routes", Accept="application/x-ndjson")[0] == 200 for _ in range(8)), 20)


# --- changes ---------------------------------------------------------------------------------------

def test_a_rollback_is_made_and_undone(lab, browser, tunnels):
    wires = Wires(lab)
    site = Site(wires.router, PORTS + STATIC_NEIGHBOURS)
    apply(wires.router, site.text + 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n')
    has_route = lambda: bool(wires.router.show("routes", "--prefix", "198.51.100.0/24"))
    entries = lambda: [(str(one["number"]), one["file"], one["origin"], one["state"] or "")
                       for one in reversed(wires.router.show("history"))]
    enter(browser, tunnels(site.socket).url + "#/history")
    shown = lambda: [(row["Number"], row["File"], row["Origin"], row["State"]) for row in browser.rows("Applied configurations")]
    browser.wait(lambda: shown() == entries(), "the history")
    # The difference of settings, and of the texts.
    browser.one('[aria-label="Compare 2"]').click()
    browser.shows("From configuration 3, the current one, to 2")
    assert browser.text(".difference .old").startswith("- turnpike.route") and "198.51.100.0/24" in browser.rows("Changes")[0]["Setting"]
    browser.one('[aria-label="Text 1"]').click()
    browser.wait(lambda: browser.text("pre") == wires.router.config.read_text().strip(), "its text")
    # Nothing is done without a second word.
    browser.one('[aria-label="Roll back 2"]').click()
    browser.shows("Roll back to configuration 2?")
    browser.click("Leave it")
    browser.wait(lambda: not browser.all("dialog"))
    assert has_route() and len(entries()) == 3
    browser.one('[aria-label="Roll back 2"]').click()
    browser.wait(lambda: "198.51.100.0/24" in browser.text("dialog"), "the changes")
    browser.click("Undo it after 60 s unless it is confirmed here", "dialog label")
    browser.click("Roll back to 2", "dialog button")
    browser.wait(lambda: not has_route(), "the rollback")
    browser.wait(lambda: shown() == entries() and len(shown()) == 4, "the history after it")
    assert shown()[0][2:] == ("rollback to 2", "current")
    # On trial, and kept.
    browser.one('[aria-label="Roll back 3"]').click()
    browser.click("Roll back to 3", "dialog button")
    browser.shows("unless it is confirmed", ".waiting")
    assert has_route()
    browser.click("Confirm")
    browser.wait(lambda: not browser.text(".waiting"))
    browser.wait(lambda: shown() == entries() and shown()[0][3] == "current", "the confirmation")
    assert wires.router.show("status")["unconfirmed"] is False
    assert browser.log() == []
    wires.router.stop()


# --- sessions --------------------------------------------------------------------------------------

def test_tokens_and_a_login_that_fails(lab, browser, tunnels):
    wires = Wires(lab)
    read, configure = "r" * 32, "c" * 40
    tokens = wires.router.directory / "tokens"
    tokens.write_text(f"read {read}\nconfigure {configure}\n")
    tokens.chmod(0o600)
    site = Site(wires.router, PORTS + STATIC_NEIGHBOURS, listen="127.0.0.1:8479", token_file=tokens)
    apply(wires.router, site.text + "-- changed\n")
    tunnel = tunnels(8479, namespace=wires.inside)
    enter(browser, tunnel.url)
    browser.shows("A line of the router's token_file")
    assert browser.run("return document.activeElement.name") == "token"
    wrong = "w" * 32
    browser.fill("input[name=token]", f"{wrong}{Keys.ENTER}")
    browser.wait(lambda: browser.text(".problem") == "this token is not one of the router's", "a refusal")
    assert browser.run("return [document.activeElement.name, document.activeElement.value, sessionStorage.length]") == ["token", "", 0]
    assert wait_for(lambda: re.search(r"audit: HTTP, 127\.0\.0\.1:\d+: identification: refused: this token is not one", wires.router.log()), 10)
    browser.fill("input[name=token]", f"{read}{Keys.ENTER}")
    browser.shows("the token of role read · read")
    # Only 401 was said by the console.
    assert all("401" in line for line in browser.log())
    # It stays with the tab, and nowhere else.
    browser.driver.refresh()
    browser.shows("the token of role read · read")
    assert browser.run("return [document.cookie, localStorage.getItem('turnpike-token'), location.href.includes('rrr')]") == ["", None, False]
    # Actions that the role lacks are not offered, and refused by the router in any case.
    browser.page("history")
    browser.wait(lambda: len(browser.rows("Applied configurations")) == 3)
    assert browser.all('[aria-label="Compare 2"]') and not browser.all('[aria-label="Roll back 2"]')
    status = browser.driver.execute_async_script("""
        const [token, done] = arguments;
        fetch("v1/rollback", {method: "POST", body: '{"to":1}', headers: {"Content-Type": "application/json", Authorization: `Bearer ${token}`}})
            .then(async (response) => done([response.status, (await response.json()).detail]));
    """, read)
    assert status[0] == 403 and "may not rollback: needs role configure" in status[1]
    assert len(wires.router.show("history")) == 3
    for page, text in (("trace", "Traces need the role operate."), ("capture", "Captures need the role operate.")):
        browser.page(page)
        browser.shows(text)
    browser.click("Log out")
    browser.shows("You have logged out.")
    assert browser.run("return sessionStorage.length") == 0
    browser.log()
    browser.fill("input[name=token]", f"{configure}{Keys.ENTER}")
    browser.page("history")
    browser.one('[aria-label="Roll back 2"]')
    # Withdrawn while it is in use.
    tokens.write_text(f"read {read}\n")
    browser.shows("this token is not one of the router's")
    browser.one("input[name=token]")
    assert not [token for token in (read, configure, wrong) if token in wires.router.log()]
    wires.router.stop()


def test_users_have_their_roles(site, browser, tunnels):
    settings = f'dashboard = true, group = "{MEMBERS}"'
    apply(site.router, site.text.replace("dashboard = true", settings).replace('"table"', f'"{site.router.directory}/table"'))
    try:
        enter(browser, tunnels(site.socket, user=READER, group=MEMBERS).url + "#/history")
        browser.shows(f"(uid {READER}) · read" if "(uid" in browser.text("header") else f"user {READER} · read")
        browser.wait(lambda: browser.rows("Applied configurations"))
        assert browser.all('[aria-label="Text 1"]') and not browser.all('[aria-label="Roll back 1"]')
        assert browser.log() == []
        enter(browser, tunnels(site.socket, user=NOBODY, group=MEMBERS).url)
        browser.shows(f"user {NOBODY} has no role; turnpike.access gives them", ".problem")
        assert all("403" in line for line in browser.log())
    finally:
        site.router.command("rollback")


def test_pages_of_others_do_nothing(site, browser, tunnels):
    tunnel = tunnels(site.socket)
    before = len(site.router.show("history"))
    # A name that leads here: its page would be of the same origin.
    browser.open(f"http://attacker.example:{tunnel.port}/")
    browser.shows("not this service's")
    browser.open(f"http://attacker.example:{tunnel.port}/v1/routes")
    browser.shows("not this service's")

    class Foreign(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>foreign</title>")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # Another port of this machine is the same site, and another origin.
        browser.open(f"http://localhost:{server.server_port}/")
        sent = browser.driver.execute_async_script("""
            const [url, done] = arguments;
            const attempt = async (path, options) => {
              try {
                const response = await fetch(url + path, options);
                return [response.type, response.type === "opaque" ? "" : await response.text()];
              } catch (error) { return ["failed", String(error)]; }
            };
            const json = {"Content-Type": "application/json"};
            (async () => done([
              await attempt("v1/history"),
              await attempt("v1/rollback", {method: "POST", body: "{}", headers: json}),
              await attempt("v1/rollback", {method: "POST", body: "{}", mode: "no-cors"}),
              await attempt("v1/history", {mode: "no-cors"}),
              await new Promise((resolve) => {
                const script = document.createElement("script");
                script.src = url + "app.js";
                script.onload = () => resolve(["loaded", ""]);
                script.onerror = () => resolve(["failed", ""]);
                document.head.append(script);
              }),
              await new Promise((resolve) => {
                const frame = document.createElement("iframe");
                frame.onload = () => { let inner = null; try { inner = frame.contentDocument; } catch {} resolve(["framed", inner?.title ?? ""]); };
                frame.src = url;
                document.body.append(frame);
              }),
            ]))();
        """, tunnel.url)
        server.shutdown()
    assert [kind for kind, _ in sent] == ["failed", "failed", "opaque", "opaque", "failed", "framed"], sent
    assert sent[5][1] != "Turnpike" and any("frame-ancestors" in line for line in browser.log())
    assert len(site.router.show("history")) == before
    # The origin is refused, and not only kept from the page.
    port = {"Host": f"localhost:{tunnel.port}"}
    for origin in (f"http://localhost:{tunnel.port + 1}", "http://attacker.example", "null", f"https://localhost:{tunnel.port}"):
        assert "Origin" in site.api.refused("POST", "/v1/rollback", {}, status=403, Origin=origin, **port)
    assert site.api.ask("GET", "/v1/vrfs", Origin=f"http://localhost:{tunnel.port}", **port)[0] == 200
    assert "not this service's" in site.api.refused("GET", "/v1/vrfs", Host="attacker.example", status=421)


def test_hostile_names_are_text(site, here):
    for page in PAGES:
        here.page(page)
        here.wait(lambda: here.all("nav [aria-current]")[0].get_attribute("data-page") == page)
        here.wait(lambda: "Reading…" not in here.text(), page)
        if page in ("filters", "history"):
            here.shows(HOSTILE)
        assert len(here.all("img")) == 1, page
    here.page("trace")
    here.fill("input[name=packet]", f"{HOSTILE}{Keys.ENTER}")
    here.wait(lambda: 'protocol "<img": unknown' in here.text(".problem"), "an error with the text")
    here.page(f"interfaces?q={HOSTILE}")
    here.shows(f'No interface has "{HOSTILE}"')
    assert len(here.all("img")) == 1 and here.run("return window.hit") is None
    assert all("422" in line for line in here.log())
    # And were it made an element by mistake, the browser would refuse it.
    for script, kind in (("document.body.innerHTML = arguments[0]", "TrustedHTML"),
                         ("document.body.setAttribute('onclick', arguments[0])", "TrustedScript")):
        with pytest.raises(JavascriptException, match=kind):
            here.run(script, HOSTILE)
    here.log()


# --- the router goes and comes ---------------------------------------------------------------------

def test_the_page_recovers_when_the_router_is_started_again(lab, browser, tunnels, tmp_path):
    wires = Wires(lab, start=False)
    # The file of its start has the API.
    socket = tmp_path / "api.sock"
    api = f'turnpike.api {{ socket = "{socket}", dashboard = true }}\n'
    router = lab.router(wires.inside, PORTS + STATIC_NEIGHBOURS + api)
    enter(browser, tunnels(socket).url + "#/interfaces")
    browser.wait(lambda: len(browser.rows("Interfaces")) == 2, "interfaces")
    browser.run("window.mark = 7")
    browser.log()
    router.kill()
    browser.shows("The numbers are old. Trying again.", ".lost")
    assert "absent" in browser.run("return document.body.className")
    assert len(browser.rows("Interfaces")) == 2
    # Another page, while there is none.
    browser.page("history")
    browser.wait(lambda: browser.text("h1") == "Configuration")
    router.config.write_text(router.config.read_text() + 'turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }\n')
    router.start()
    browser.shows("The router")
    browser.wait(lambda: not browser.text(".lost") and browser.rows("Applied configurations"), "the way back")
    browser.page("routes")
    browser.wait(lambda: "198.51.100.0/24" in [row["Prefix"] for row in browser.rows("Routes")], "a new route")
    assert browser.run("return window.mark") == 7 and "absent" not in browser.run("return document.body.className")
    assert all("Failed to load resource" in line or "ERR_" in line for line in browser.log())
    router.stop()


# --- files, and how they look ----------------------------------------------------------------------

def fetch(site, path, method="GET", **headers):
    """A response to a request for a file."""
    connection = site.api.connect()
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def test_files_are_served_safely_and_once(site):
    paths, waiting = set(), ["/"]
    while waiting:
        path = waiting.pop()
        paths.add(path)
        status, headers, body = fetch(site, path)
        assert status == 200 and body, path
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin" and headers["Cache-Control"] == "no-cache"
        kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", "": "text/html"}
        assert headers["Content-Type"].startswith(kinds[Path(path).suffix])
        again = fetch(site, path, If_None_Match=headers["ETag"])
        assert again[0] == 304 and again[2] == b""
        assert fetch(site, path, "HEAD")[2] == b"" and fetch(site, path, "POST")[0] == 404
        text = body.decode()
        # Nothing is within the page, and nothing comes from elsewhere.
        assert not re.search(r"<script(?![^>]*src)|<style|\sstyle=|\son\w+=\"", text) if path == "/" else True
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        found = re.findall(r'(?:from|src=|href=)\s*"((?:\.|\w)[^"#:]*)"', text) if not path.endswith(".svg") else []
        base = path.rsplit("/", 1)[0]
        for name in found:
            target = re.sub(r"[^/]+/\.\./", "", f"{base}/{name.removeprefix('./')}")
            if target not in paths:
                waiting.append(target)
    assert len(paths) == 21, paths
    assert fetch(site, "/v1/session")[0] == 200 and site.api.get("/v1/session") == {"client": "user root (uid 0)", "role": "configure"}


def test_without_the_setting_there_is_no_dashboard(lab):
    wires = Wires(lab)
    site = Site(wires.router, PORTS + STATIC_NEIGHBOURS)
    assert fetch(site, "/")[0] == 200
    own = {"Host": "localhost:8479", "Origin": "http://localhost:8479"}
    assert site.api.ask("GET", "/v1/vrfs", **own)[0] == 200
    apply(wires.router, site.text.replace("dashboard = true", "dashboard = false"))
    assert fetch(site, "/")[0] == fetch(site, "/app.js")[0] == 404
    assert "Origin" in site.api.refused("GET", "/v1/vrfs", status=403, **own)
    wires.router.stop()


# The least contrast of visible texts with what is behind them, by WCAG 2.1, and those below 4.5.
CONTRAST = """
const parse = (text) => { const all = text.match(/[\\d.]+/g).map(Number); return [...all.slice(0, 3), all[3] ?? 1]; };
const over = (top, below) => top.slice(0, 3).map((one, at) => one * top[3] + below[at] * (1 - top[3]));
const light = (colour) => colour.map((one) => one / 255).map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (element) => {
  const colours = [];
  for (let one = element; one; one = one.parentElement) colours.unshift(parse(getComputedStyle(one).backgroundColor));
  return colours.reduce((below, top) => over(top, below), [255, 255, 255]);
};
const low = [];
for (const element of document.querySelectorAll("body *")) {
  const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!isText || !element.checkVisibility() || element.closest(":disabled, .unseen")) continue;
  const style = getComputedStyle(element);
  const ground = behind(element.closest("svg") ?? element);
  const [a, b] = [light(over(parse(element.closest("svg") ? style.fill : style.color), ground)), light(ground)];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) low.push([element.textContent, contrast]);
}
return low;
"""

# Elements that stick out of their card.
OUTSIDE = """
return [...document.querySelectorAll(".card")].flatMap((card) => {
  const right = card.getBoundingClientRect().right;
  const inner = [...card.querySelectorAll("*")].filter((one) => one.checkVisibility() && !one.closest(".scroll, pre, .unseen"));
  return inner.filter((one) => one.getBoundingClientRect().right > right).map((one) => one.outerHTML);
});
"""

# Fields and buttons without a name.
NAMELESS = """
return [...document.querySelectorAll("input, select, button, a, [role=meter], [role=img]")].filter((one) => (
  one.checkVisibility() && !one.getAttribute("aria-label") && !one.textContent.trim() && !(one.labels && one.labels[0]?.textContent.trim())
)).map((one) => one.outerHTML);
"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_pages_fit_and_can_be_read(site, here, colours):
    here.prefers(colours)
    for page in PAGES:
        here.page(page)
        here.wait(lambda: here.all("nav [aria-current]")[0].get_attribute("data-page") == page)
        here.wait(lambda: "Reading…" not in here.text(), page)
        assert here.run(CONTRAST) == [], page
        assert here.run(NAMELESS) == [], page
        for width in (360, 1100, 1920):
            here.size(width, 900)
            assert here.run(OUTSIDE) == [], (page, width)
            assert here.run("return document.documentElement.scrollWidth") <= width, (page, width)
    ground = here.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (colours == "dark")


def test_keys_and_the_switch_of_colours(site, here):
    here.wait(lambda: here.all("nav a"))
    body = here.one("body")
    focused = lambda: here.run("return document.activeElement.textContent")
    body.send_keys(Keys.TAB)
    assert focused() == "Skip to the content"
    here.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert here.run("return document.activeElement.id") == "content"
    here.run("document.querySelector('nav a').focus()")
    for _ in range(3):
        here.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert focused() == "Routes"
    here.driver.switch_to.active_element.send_keys(Keys.ENTER)
    here.wait(lambda: here.text("h1") == "Routes")
    assert focused() == "Routes" and here.run("return document.activeElement.tagName") == "H1"
    assert here.driver.title == "Routes · Turnpike"
    here.click("◐ Auto")
    here.click("☀ Light")
    ground = lambda: here.run("return getComputedStyle(document.body).backgroundColor")
    here.wait(lambda: ground() == "rgb(15, 20, 27)", "dark")
    here.driver.refresh()
    here.shows("☾ Dark")
    assert ground() == "rgb(15, 20, 27)"
    here.click("☾ Dark")
    here.shows("◐ Auto")

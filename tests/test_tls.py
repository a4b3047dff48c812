"""TLS of the API and of the metrics: real clients, certificates by openssl, and clients that do all of it wrong."""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess

import pytest
from lib.api import Api
from lib.apply import apply, plan, refused
from lib.lab import PORTS, STATIC_NEIGHBOURS, Wires
from lib.metrics import get
from lib.netns import wait_for
from lib.pki import Authority
from lib.router import binary

API, METRICS = 8479, 9477
# An address of the router that is not loopback, as others reach it.
ELSEWHERE = "192.0.2.1"
ROLES = """
turnpike.access { read = { "cert:reader", "cert:scraper@router.example" }, configure = { "cert:changer" } }
"""


class Site:
    """A router with TLS, its authorities, and its clients."""

    def __init__(self, lab):
        self.wires = Wires(lab)
        self.router, self.inside = self.wires.router, self.wires.inside
        self.inside.run("ip", "address", "add", f"{ELSEWHERE}/32", "dev", "lo")
        self.directory = self.router.directory
        self.servers, self.clients, self.others = (Authority(self.directory, name) for name in ("servers", "clients", "others"))
        self.made = {}
        self.certificate, self.key = self.directory / "server.pem", self.directory / "server.key"
        self.install(*self.server("router"))
        self.socket = self.directory / "api.sock"

    def server(self, name, authority=None, names="DNS:router.example,IP:192.0.2.1", days=2):
        """A certificate of the server and its key."""
        return (authority or self.servers).issue(name, names, days)

    def install(self, certificate, key):
        """Puts both where the configuration says."""
        for source, target in ((certificate, self.certificate), (key, self.key)):
            if source:
                shutil.copy(source, target)
        self.key.chmod(0o600)

    def client(self, name, names="", authority=None, days=2):
        """Options of curl for a client with a certificate."""
        known = (authority or self.clients, name, days)
        if known not in self.made:
            self.made[known] = known[0].issue(name, names, days)
        certificate, key = self.made[known]
        return "--cert", str(certificate), "--key", str(key)

    def files(self, client_ca=True):
        """The settings of the files."""
        text = f'certificate = "{self.certificate}", key = "{self.key}"'
        return text + f', client_ca = "{self.clients.file}"' * client_ca

    def text(self, client_ca=True, access=ROLES, more="", extra=""):
        """A configuration with TLS."""
        files = self.files(client_ca)
        return (PORTS + STATIC_NEIGHBOURS + (access if client_ca else "") + extra +
                f'turnpike.api {{ socket = "{self.socket}", listen = "0.0.0.0:{API}", dashboard = true, {files}{more} }}\n'
                f'turnpike.metrics {{ listen = "0.0.0.0:{METRICS}", {self.files()} }}\n')

    def curl(self, path, *options, ca=None, host="router.example", port=API):
        """Asks by curl; returns its exit status, the status of the answer and the answer."""
        ca = ca or self.servers
        argv = ["ip", "netns", "exec", self.inside.name, "curl", "-s", "--max-time", "30", "--cacert", str(ca.file), "--resolve",
                f"{host}:{port}:{ELSEWHERE}", "-w", "\n%{http_code}", f"https://{host}:{port}{path}", *options]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        body, _, status = done.stdout.rpartition("\n")
        return done.returncode, int(status), body

    def openssl(self, *options, port=API):
        """Shakes hands by openssl; returns what it says."""
        argv = ["ip", "netns", "exec", self.inside.name, "openssl", "s_client", "-connect", f"{ELSEWHERE}:{port}",
                *map(str, options)]
        done = subprocess.run(argv, input="", capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    def connect(self, port=API, source="0.0.0.0"):
        """A connection without TLS."""
        with self.inside.entered():
            stream = socket.socket()
        stream.settimeout(30)
        stream.bind((source, 0))
        stream.connect((ELSEWHERE, port))
        return stream

    def context(self, name="reader"):
        """A client's side of TLS."""
        context = ssl.create_default_context(cafile=str(self.servers.file))
        _, certificate, _, key = self.client(name)
        context.load_cert_chain(certificate, key)
        return context

    def connection(self, name="reader"):
        """A connection for several requests."""
        connection = http.client.HTTPConnection("router.example", API, timeout=30)
        connection.sock = self.context(name).wrap_socket(self.connect(), server_hostname="router.example")
        return connection

    def works(self, *client):
        """A client with a certificate, and one of the Unix socket, are answered."""
        assert self.curl("/v1/vrfs", *(client or self.client("reader")))[:2] == (0, 200)
        assert Api(self.socket).get("/v1/session")["role"] == "configure"


@pytest.fixture(scope="module")
def site(module_lab):
    site = Site(module_lab)
    apply(site.router, site.text())
    yield site
    site.router.stop()


def ask(connection, path):
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_the_servers_certificate_is_its_own(site):
    reader = site.client("reader")
    assert site.curl("/v1/vrfs", *reader)[:2] == (0, 200)
    # 60: curl cannot verify the server.
    assert site.curl("/v1/vrfs", *reader, ca=site.others)[:2] == (60, 0)
    assert site.curl("/v1/vrfs", *reader, host="attacker.example")[0] == 60
    assert wait_for(lambda: re.search(r"api: 192\.0\.2\.1:\d+: no TLS with it: ", site.router.log()))
    # Metrics, too.
    code, status, text = site.curl("/metrics", *reader, port=METRICS)
    assert (code, status) == (0, 200) and "turnpike_build_info" in text
    assert site.curl("/metrics", *reader, port=METRICS, ca=site.others)[:2] == (60, 0)


def test_clients_need_a_certificate(site):
    for port, path in ((API, "/v1/vrfs"), (METRICS, "/metrics")):
        assert site.curl(path, port=port)[1] == 0
        assert site.curl(path, *site.client("reader", authority=site.others), port=port)[1] == 0
        assert site.curl(path, *site.client("reader", days=-1), port=port)[1] == 0
        said = site.openssl("-CAfile", site.servers.file, "-ign_eof", port=port)
        assert "CN = clients" in said and re.search("certificate required|alert number 116", said), said
    # A line a second.
    assert wait_for(lambda: site.curl("/")[1] == 0 and "peer sent no certificates" in site.router.log())
    # Neither for a file of the dashboard.
    assert site.curl("/")[1] == 0 and site.curl("/", *site.client("reader"))[1] == 200
    site.works()


def test_names_have_roles(site):
    code, status, text = site.curl("/v1/session", *site.client("reader"))
    assert (code, json.loads(text)) == (0, {"client": "certificate reader", "role": "read"})
    # Another name of the certificate, as good as that of the subject.
    scraper = site.client("x1", "email:scraper@router.example,DNS:host.example")
    assert site.curl("/v1/vrfs", *scraper)[1] == 200
    body = ("-H", "Content-Type: application/json", "-d", '{"to": 99}')
    for client, expected in (("reader", 403), ("changer", 422)):
        assert site.curl("/v1/rollback", *body, *site.client(client))[1] == expected
    for name in ("READER", "root", "0", "cert:reader", ""):
        code, status, text = site.curl("/v1/vrfs", *site.client(name))
        assert (code, status) == (0, 403), name
        assert (f"certificate {name} may not" if name else "a certificate without a name may not") in text
    assert re.search(r'audit: HTTP, certificate changer, 192\.0\.2\.1:\d+: \{"rollback"', site.router.log())


def test_a_name_does_not_spoil_the_log(site):
    client = site.clients.issue("x\naudit: HTTP")
    code, status, _ = site.curl("/v1/vrfs", "--cert", str(client[0]), "--key", str(client[1]))
    assert (code, status) == (0, 403)
    assert not re.search(r"^audit: HTTP", site.router.log(), re.M)


def test_hosts_and_origins_are_those_of_the_certificate(site):
    reader = site.client("reader")
    for host, expected in (("router.example:8479", 200), ("192.0.2.1:8479", 200), ("localhost", 200), ("attacker.example", 421),
                           ("10.0.1.1:8479", 421)):
        assert site.curl("/v1/vrfs", *reader, "-H", f"Host: {host}")[1] == expected, host
    for origin, expected in (("https://router.example:8479", 200), ("http://router.example:8479", 403),
                             ("https://attacker.example", 403)):
        assert site.curl("/v1/vrfs", *reader, "-H", f"Origin: {origin}")[1] == expected, origin
    # The Unix socket has no certificate.
    assert Api(site.socket).ask("GET", "/v1/vrfs", Host="router.example")[0] == 421


def test_old_versions_are_refused(site):
    weak = ("-cipher", "ALL:@SECLEVEL=0")
    for version, works in (("-tls1", False), ("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)):
        said = site.openssl(version, *weak, "-CAfile", site.servers.file)
        assert ("Cipher is (NONE)" not in said and "CN = router" in said) == works, said
        assert re.search(r"SSL alert number (40|70)\b", said) is None or not works, said


def test_what_is_no_handshake_is_left(site):
    for text in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 4096, b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000,
                 b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", b"\x80\x2e\x01\x00\x02", b""):
        with contextlib.closing(site.connect()) as stream, contextlib.suppress(OSError):
            stream.sendall(text)
            stream.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: stream.recv(1 << 16), b""))
            assert b"HTTP" not in answer and len(answer) < 100
    site.works()
    assert "panicked" not in site.router.log()


def half(context):
    """The two ends of a handshake that has not begun."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return incoming, outgoing, context.wrap_bio(incoming, outgoing, server_hostname="router.example")


def first_words(context):
    """The first message of a client's."""
    _, outgoing, client = half(context)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def descriptors(router):
    return len(os.listdir(f"/proc/{router.process.pid}/fd"))


@pytest.mark.parametrize("begun", ["nothing", "half", "hello"])
def test_handshakes_that_do_not_end_keep_nobody_out(site, begun):
    hello = first_words(site.context())
    words = {"nothing": b"", "half": hello[: len(hello) // 2], "hello": hello}[begun]
    before = descriptors(site.router)
    with contextlib.ExitStack() as held:
        for number in range(400):
            stream = held.enter_context(contextlib.closing(site.connect()))
            # Those that have been closed for a newer one refuse it.
            with contextlib.suppress(ConnectionError):
                stream.sendall(words)
            if number % 100 == 99:
                site.works()
                assert get(scraper(site))[0].endswith("200 OK")
        assert descriptors(site.router) < before + 200
        # Silence has an end, too.
        assert wait_for(lambda: descriptors(site.router) < before + 20, timeout=30)
        site.works()


def scraper(site):
    """A connection of a scrape."""
    return site.context().wrap_socket(site.connect(METRICS), server_hostname="router.example")


def test_a_flood_from_one_address_ends_no_handshake_of_another(site):
    incoming, outgoing, client = half(site.context())
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with contextlib.ExitStack() as held:
        slow = held.enter_context(contextlib.closing(site.connect()))
        slow.sendall(outgoing.read())
        for _ in range(300):
            held.enter_context(contextlib.closing(site.connect(source="127.0.0.1")))
        assert wait_for(lambda: descriptors(site.router) > 64)
        while True:
            incoming.write(slow.recv(1 << 16))
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
        client.write(b"GET /v1/session HTTP/1.1\r\nHost: router.example\r\n\r\n")
        slow.sendall(outgoing.read())
        text = b""
        while b'"role":"read"' not in text:
            data = slow.recv(1 << 16)
            assert data, "closed"
            incoming.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                text += client.read()


def served(site):
    """The serial number of the certificate that a client sees."""
    said = site.openssl("-CAfile", site.servers.file)
    return re.search(r"-----BEGIN CERTIFICATE-----\n(.*?)-----END", said, re.S)[1]


def test_other_files_are_taken_without_ending_connections(site):
    apply(site.router, site.text())
    connection, former = site.connection(), served(site)
    assert ask(connection, "/v1/session")[1]["client"] == "certificate reader"
    # The same text, other files.
    site.install(*site.server("another"))
    changes, code = plan(site.router, site.text())
    named = {change["what"] for change in changes["changes"]}
    assert named == {f"{of}: {file}: changed" for of in ("api", "metrics") for file in ("certificate", "key")}, changes
    apply(site.router, site.text())
    present = served(site)
    assert present != former
    assert ask(connection, "/v1/session")[0] == 200
    # A reload is an apply.
    site.install(*site.server("third"))
    file = site.router.directory / "router.lua"
    assert file.exists(), list(site.router.directory.iterdir())
    before = file.read_text()
    file.write_text(site.text())
    site.router.process.send_signal(1)
    assert wait_for(lambda: served(site) != present, timeout=20)
    assert ask(connection, "/v1/session")[0] == 200
    file.write_text(before)
    site.works()


def test_wrong_files_are_refused_and_those_that_run_go_on(site):
    apply(site.router, site.text())
    router, present, connection = site.router, served(site), site.connection()
    assert ask(connection, "/v1/vrfs")[0] == 200
    good, file = (site.certificate.read_bytes(), site.key.read_bytes()), router.directory / "new.lua"

    def put(certificate=None, key=None, mode=0o600):
        # Another file, as its time of change says.
        site.certificate.write_bytes(certificate if certificate is not None else good[0])
        site.key.write_bytes(key if key is not None else good[1])
        site.key.chmod(mode)
        file.write_text(site.text())

    def check():
        return site.inside.run(binary(), "check", str(file), check=False).stdout

    secret = good[1].decode().splitlines()[1]
    expired, other = site.server("late", days=-1), site.server("other")
    bare = site.servers.issue("bare")
    damaged = good[0][:60] + b"%%" + good[0][60:]
    for wrong, expected in (
        ({"key": other[1].read_bytes()}, f"api: key {site.key}: the key of another certificate"),
        ({"key": b""}, f"api: key {site.key}: no private key in it"),
        ({"key": good[1].replace(secret.encode(), secret[::-1].encode())}, f"api: key {site.key}: "),
        ({"key": b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"}, "encrypted; write it"),
        ({"mode": 0o640}, f"api: key {site.key}: mode 640: others can read it; chmod 600"),
        ({"certificate": b"garbage"}, f"api: certificate {site.certificate}: no certificate in it"),
        ({"certificate": damaged}, f"api: certificate {site.certificate}: damaged PEM"),
        ({"certificate": expired[0].read_bytes(), "key": expired[1].read_bytes()}, "expired on "),
        ({"certificate": bare[0].read_bytes(), "key": bare[1].read_bytes()}, "without names of the server"),
    ):
        put(**wrong)
        for message in (refused(router, "apply", file), refused(router, "plan", file), check()):
            assert expected in message and secret not in message, message
        assert served(site) == present and ask(connection, "/v1/vrfs")[0] == 200
    put()
    site.key.unlink()
    message = refused(router, "apply", file)
    assert f"api: key {site.key}: put it there, or correct the setting: No such file" in message
    put()
    site.certificate.chmod(0o666)
    assert "mode 666: others can write it; chmod 644" in refused(router, "apply", file)
    site.certificate.chmod(0o644)
    # The text of a key, in place of its path, is shown to nobody.
    inline = site.text().replace(f'"{site.key}"', f"[[{good[1].decode()}]]")
    file.write_text(inline)
    message = refused(router, "apply", file)
    assert "key: no absolute path of a file in PEM" in message and secret not in message
    apply(router, site.text())
    everything = router.log() + json.dumps(router.show("history")) + json.dumps(plan(router, site.text(more=", group = '0'"))[0])
    assert secret not in everything
    assert ask(connection, "/v1/vrfs")[0] == 200


def test_an_authority_that_is_left_out_gives_nothing_more(site):
    apply(site.router, site.text())
    connection = site.connection()
    assert ask(connection, "/v1/vrfs")[0] == 200
    kept = site.clients.file.read_bytes()
    site.clients.file.write_bytes(site.others.file.read_bytes())
    apply(site.router, site.text())
    status, answer = ask(connection, "/v1/vrfs")
    assert status == 403 and "connect again" in answer["detail"]
    assert site.curl("/v1/vrfs", *site.client("reader", authority=site.others))[1] == 200
    assert site.curl("/v1/vrfs", *site.client("reader"))[1] == 0
    site.clients.file.write_bytes(kept)
    apply(site.router, site.text())
    site.works()
    # One that has expired is none.
    late = site.directory / "late.pem"
    late.write_bytes(site.servers.issue("late", days=-1)[0].read_bytes())
    text = site.text().replace(str(site.clients.file), str(late))
    (site.directory / "late.lua").write_text(text)
    assert f"client_ca {late}: an authority in it has expired" in refused(site.router, "apply", site.directory / "late.lua")


def test_tokens_with_tls(site):
    read, configure = "r" * 32, "c" * 40
    tokens = site.directory / "tokens"
    tokens.write_text(f"read {read}\nconfigure {configure}\n")
    tokens.chmod(0o600)
    bearer = lambda token: ("-H", f"Authorization: Bearer {token}")
    role = lambda *options: json.loads(site.curl("/v1/session", *options)[2])["role"]
    apply(site.router, site.text(client_ca=False, more=f', token_file = "{tokens}"'))
    assert role(*bearer(read)) == "read" and site.curl("/v1/session")[1] == 401
    # A certificate that nobody has asked for says nothing.
    assert site.curl("/v1/session", *site.client("changer"))[1] == 401
    # With both, a certificate is needed, and a token may give more.
    apply(site.router, site.text(more=f', token_file = "{tokens}"'))
    assert site.curl("/v1/session", *bearer(read))[1] == 0
    assert role(*site.client("reader")) == "read" and role(*site.client("reader"), *bearer(configure)) == "configure"
    assert role(*site.client("x2"), *bearer(read)) == "read" and site.curl("/v1/session", *site.client("x2"))[1] == 401
    assert site.curl("/v1/session", *site.client("changer"), *bearer(read[:-1]))[1] == 401
    apply(site.router, site.text())
    site.works()


def test_without_tls_the_rule_is_the_former_one(site):
    file = site.directory / "plain.lua"
    for statement, expected in (
        ('turnpike.api { listen = "0.0.0.0:8479" }', "the API is not encrypted"),
        (f'turnpike.api {{ listen = "0.0.0.0:8479", {site.files(client_ca=False)} }}', "nothing says who they are"),
        ('turnpike.metrics { listen = "0.0.0.0:9477" }', "metrics have no passwords"),
    ):
        file.write_text(PORTS + STATIC_NEIGHBOURS + statement)
        assert expected in refused(site.router, "apply", file)
    site.works()


def test_an_expired_certificate_keeps_no_router_from_its_start(lab):
    site = Site(lab)
    site.install(*site.server("late", days=-1))
    site.router.stop()
    site.router = lab.router(site.inside, site.text())
    assert f"api: certificate {site.certificate}: expired on " in site.router.log()
    assert site.curl("/v1/vrfs", *site.client("reader"))[0] == 60
    assert site.curl("/v1/vrfs", *site.client("reader"), "-k")[:2] == (0, 200)
    site.install(*site.server("router"))
    apply(site.router, site.text())
    site.works()
    site.router.stop()

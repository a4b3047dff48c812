"""Configuration files of MoonRoute."""

from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, RIGHT_MAC, Hosts, Wires
from lib.packets import ethernet, ipv4, mac_bytes, pattern, udp
from lib.router import binary
from lib.telnet import Telnet

CONFIG = f"""
config = {{ports = {{}}, routes = {{}}}}

-- GENERAL CONFIGURATION
config["txQueueSize"] = 128
config["txQueueTimeout"] = 0.0001
config["rxBurstSize"] = 128
config["addRoutesToLocalNetworks"] = true
config["telnetEnable"] = true
config["telnetPort"] = 2324
config["telnetBindIP"] = "0.0.0.0"
config["slowPathQueueSize"] = 64
config["fastPathCores"] = {{0}}

ports = {{}}
ports["Port1"] = {{
  mac = "{LEFT_MAC.upper()}",
  ipv4 = "10.0.1.1",
  ipv4Prefix = 24,
  direction = "inout",
}}
ports["Port2"] = {{
  mac = "{RIGHT_MAC}",
  ipv4 = "10.0.2.1",
  ipv4Prefix = 24,
  direction = "inout"
}}

routes = {{}}
routes["Route1"] = {{
  nhPort = "Port2",
  -- if a nhMAC field is present, it has priority over the nhIPv4 field
  nhMAC = "02:00:00:00:02:77",
  nhIPv4 = "10.0.2.9",
  networkIP = "128.0.0.0",
  networkPrefix = 1
}}
routes["Route2"] = {{ nhPort = "Port2", nhIPv4 = "10.0.2.2", networkIP = "198.51.100.0", networkPrefix = 24 }}
config.ports = ports
config.routes = routes

return config
"""


def test_hosts_reach_each_other_by_such_a_file(lab):
    hosts = Hosts(lab, CONFIG, ports="", options=["--moonroute"])
    hosts.right.run("ip", "address", "add", "198.51.100.1/32", "dev", "eth0")
    for target in ("10.0.2.2", "198.51.100.1"):
        hosts.left.run("ping", "-c", "2", "-W", "2", target)
    log = hosts.router.log()
    assert 'router.lua: telnetBindIP = "0.0.0.0": telnet has no passwords, so it is served on 127.0.0.1' in log
    assert "txQueueSize = 128: burst = 64 is the most" in log
    client = Telnet(hosts.inside, 2324)
    client.read_until(rb"% $")
    assert "10.0.2.2 (Port2)" in client.ask("sr")
    client.close()
    # A rollback uses the converted configuration.
    ours = hosts.router.command("history", "1").stdout
    assert f'turnpike.port "Port2" {{ address = "10.0.2.1/24", device = "tp-right" }}' in ours
    hosts.router.stop()


def test_a_next_hop_may_be_a_mac(lab):
    wires = Wires(lab, CONFIG, ports="", options=["--moonroute"])
    wires.router.command("neighbour", "add", "10.0.2.2", "lladdr", HOST_B_MAC, "dev", "Port2")
    for target, mac in (("198.51.100.7", HOST_B_MAC), ("203.0.113.7", "02:00:00:00:02:77")):
        packet = ipv4("10.0.1.2", target, udp("10.0.1.2", target, 1000, 53, pattern(20)))
        wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, packet))
        (sent,) = wires.right.expect(1, lambda frame: frame[30:34] == packet[16:20])
        assert sent[:12] == mac_bytes(mac) + mac_bytes(RIGHT_MAC)


def test_such_a_file_is_checked(lab, tmp_path):
    wires = Wires(lab, start=False)
    file = tmp_path / "cfg.lua"

    def check(text):
        file.write_text(text)
        return wires.inside.run(binary(), "check", "--moonroute", file, check=False)

    right = check(CONFIG)
    assert right.returncode == 0, right
    assert f"{file}: OK: 2 ports, 2 routes, 1 neighbour" in right.stdout
    assert "warning: rxBurstSize: has no effect" in right.stdout
    wrong = check(CONFIG.replace(RIGHT_MAC, "02:00:00:00:09:09"))
    assert wrong.returncode == 1
    assert 'port "Port2": no interface has mac 02:00:00:00:09:09; known: ' in wrong.stdout
    assert f"{RIGHT_MAC} (tp-right)" in wrong.stdout
    assert "must end with: return config" in check("x = 1").stdout

"""Scripts of Click configurations: they read and write handlers, wait, and end the router; none keeps the router from its work."""

import subprocess

from lib.apply import refused
from lib.click import ControlSocket
from lib.lab import HOST_A_MAC, LEFT_MAC, Wires
from lib.netns import wait_for
from lib.packets import ethernet, pattern, pcap_file
from lib.router import Change, binary

SORTER = """
cs :: ControlSocket(TCP, 7777);
FromDevice(tp-left) -> c :: Counter -> s :: Switch(0);
s[0] -> Queue -> ToDevice(tp-right);
s[1] -> d :: Discard;
"""


def click(text):
    """Options of a router in a lab that runs a Click configuration."""
    return {"config": text, "ports": "", "options": ["--click"]}


def frame(number=0):
    return ethernet(LEFT_MAC, HOST_A_MAC, 0x88B5, bytes([number]) + pattern(45))


def test_a_script_watches_packets_and_leads_them_elsewhere(lab, tmp_path):
    text = SORTER + f"""
    w :: Script(set rounds 0, label again, wait 10ms, set rounds $(add $rounds 1), goto again $(lt $(c.count) 5),
                write s.switch 1, print "switched $?", print >{tmp_path}/counts c.count,
                print >>{tmp_path}/counts "d $(d.count)", read s.switch, export rounds 0);
    """
    wires = Wires(lab, **click(text), calm=True)
    change = Change(wires.router)
    client = ControlSocket(wires.inside)
    wires.left.send(*[frame(number) for number in range(4)])
    assert len(wires.right.expect(4)) == 4
    assert client.read("s.switch") == "0"
    assert wait_for(lambda: int(client.read("w.rounds")) > 2)
    wires.left.send(frame(4))
    assert wires.right.expect(1) == [frame(4)]
    assert wait_for(lambda: client.read("s.switch") == "1")
    # The script counts on before it has read the next packets.
    assert wait_for(lambda: (tmp_path / "counts").exists() and (tmp_path / "counts").read_text() == "5\nd 0\n")
    wires.left.send(*[frame(number) for number in range(3)])
    assert wait_for(lambda: client.read("d.count") == "3")
    for line in ('script "w": switched 0', 'script "w": s.switch:', 'script "w": 1', 'audit: script "w": '):
        assert wait_for(lambda line=line: line in wires.router.log()), wires.router.log()
    came = change(received=8)
    assert (came["received"], came["sent"]) == (8, 5), came
    wires.router.stop()


def test_passive_scripts_are_handlers(lab):
    text = SORTER + """
    elementclass Watched { input -> n :: Counter -> output;
        sum :: Script(TYPE PASSIVE, return $(add $(n.count) $(c.count) $1)) }
    Idle -> w :: Watched -> Discard;
    steps :: Script(export at 0, pause 2, set at 1, label here, wait 1000, set at 2, pause, set at 3);
    wrong :: Script(TYPE PASSIVE, error "no $args");
    """
    wires = Wires(lab, **click(text))
    client = ControlSocket(wires.inside)
    wires.left.send(frame(), frame())
    assert len(wires.right.expect(2)) == 2
    # `n` is that of the compound element, `c` the one outside.
    assert client.read("w/sum.run", "40") == "42"
    assert (client.read("w/sum.mul", "6 7"), client.read("w/sum.sprintf", "%03d 7")) == ("42", "007")
    assert client.ask("READ w/sum.add x") == (590, ["Read handler 'w/sum.add' error:", "expected list of numbers"])
    assert client.ask("READ wrong.run a b") == (590, ["Read handler 'wrong.run' error:", '"no a b"'])
    assert client.ask("WRITE wrong.run a")[0] == 520
    assert wait_for(lambda: client.read("steps.at") == "0")
    client.write("steps.step")
    assert client.read("steps.at") == "0"
    client.write("steps.step")
    assert client.read("steps.at") == "1"
    client.write("steps.step", "2")
    assert client.read("steps.at") == "3"
    client.write("steps.goto", "here")
    assert client.ask("WRITE steps.goto there")[0] == 520 and client.ask("WRITE steps.step x")[0] == 520
    client.write("steps.step")
    assert client.read("steps.at") == "2"
    handlers = dict(line.split("\t") for line in client.read("steps.handlers").splitlines())
    assert (handlers["run"], handlers["step"], handlers["add"]) == ("rw+", "w", "r+")
    assert client.ask("CHECKREAD steps.at")[0] == 200 and client.ask("READ steps.nothing")[0] == 511
    assert wires.router.command("click", "read", "w/sum.run").stdout.strip() == "2"
    wires.router.stop()


def test_scripts_that_do_not_end_do_not_keep_the_router(lab):
    text = SORTER + """
    endless :: Script(label x, goto x);
    busy :: Script(label x, set y $(c.count), write s.switch 0, wait 1us, goto x);
    one :: Script(TYPE PASSIVE, return $(two.run));
    two :: Script(TYPE PASSIVE, return "[$(one.run)]");
    self :: Script(TYPE PASSIVE, write self.run, return $?);
    big :: Script(set a xxxxxxxxxxxxxxxx, label more, set a $a$a, goto more);
    late :: Script(TYPE PASSIVE, wait 1000, return late);
    """
    wires = Wires(lab, **click(text), calm=True)
    client = ControlSocket(wires.inside)
    log = wires.router.log
    assert wait_for(lambda: 'script "endless": 1000 jumps without a pause; it is stopped' in log())
    assert wait_for(lambda: 'script "big": a text is longer than' in log())
    # Two that run each other: the second call is refused, as the script is being executed.
    assert client.read("one.run") == '"[]"'
    assert 'script "two": one.run: ' in log() and "is being executed" in log()
    assert client.read("self.run") == "-1"
    # Running one that waits is answered at once.
    assert client.read("late.run") == ""
    wires.left.send(*[frame(number) for number in range(20)])
    assert len(wires.right.expect(20)) == 20
    for _ in range(50):
        assert client.read("version").startswith("Turnpike")
    wires.router.stop()


def test_a_change_keeps_scripts_that_stay(lab):
    def text(second, third=""):
        return SORTER + f"""
        first :: Script(export n 0, label x, wait 5ms, set n $(add $n 1), goto x);
        second :: Script(export n {second}, pause);
        {third}
        """

    wires = Wires(lab, **click(text(1, "third :: Script(export n 7, pause);")))
    client = ControlSocket(wires.inside)
    assert wait_for(lambda: client.read("second.n") == "1" and client.read("third.n") == "7")
    assert wait_for(lambda: int(client.read("first.n")) > 5)
    before = int(client.read("first.n"))
    file = wires.router.directory / "next.click"
    file.write_text(text(2))
    wires.router.command("apply", "--click", file)
    assert int(client.read("first.n")) >= before
    assert wait_for(lambda: client.ask("READ second.n")[0] == 200 and client.data() == "2")
    assert client.ask("READ third.n")[0] == 510
    # Faults are found before anything changes.
    file.write_text(text(3, "third :: Script(prnt x);"))
    error = refused(wires.router, "apply", "--click", file)
    assert 'element "third" (Script): "prnt x": unknown instruction prnt; the nearest known one is print' in error
    assert client.read("second.n") == "2"
    wires.router.stop()


def test_a_driver_decides_on_the_end(lab):
    text = SORTER + """
    DriverManager(pause, print "asked once", wait_stop, print "asked twice");
    Script(TYPE PASSIVE, stop);
    """
    wires = Wires(lab, **click(text))
    client = ControlSocket(wires.inside)
    client.write("stop")
    assert wait_for(lambda: "asked once" in wires.router.log())
    wires.left.send(frame())
    assert wires.right.expect(1) == [frame()]
    # A script's `stop` asks as well.
    script = next(name for name in client.read("list").split() if name.startswith("Script@"))
    client.write(f"{script}.run")
    assert wait_for(lambda: wires.router.process.poll() is not None)
    assert wires.router.process.returncode == 0 and "asked twice" in wires.router.log()


def test_mistakes_in_scripts_are_found_by_check(tmp_path):
    file = tmp_path / "wrong.click"
    file.write_text("""FromDevice(lo) -> Discard;
    one :: Script(goto ther, label there);
    two :: Script(TYPE SIGNAL INT, stop);
    FromDevice(lo) -> three :: Script -> Discard;
    DriverManager(pause); four :: Script(TYPE DRIVER, pause);
    """)
    result = subprocess.run([binary(), "check", "--click", file], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    for message in (
        'wrong.click:2:5: element "one" (Script): no label "ther"; the nearest known one is there',
        'element "two" (Script): TYPE SIGNAL INT is not supported; ACTIVE, PASSIVE and DRIVER are',
        'element "three" (Script): a script of packets is not supported',
        'element "four" (Script): a second script that controls the end of the router',
    ):
        assert message in result.stderr + result.stdout, result.stderr


def test_the_end_of_a_source_ends_the_router(lab, tmp_path):
    frames = [frame(number) for number in range(5)]
    (tmp_path / "in.pcap").write_bytes(pcap_file(frames))
    for source in (f"FromDump({tmp_path}/in.pcap, STOP true)", f"InfiniteSource(\\<{frames[0].hex()}>, 5, STOP true)"):
        wires = Wires(lab, **click(f"{source} -> Queue -> ToDevice(tp-right);"), wait=False)
        assert wires.router.process.wait(30) == 0
        assert "handler stop: the router ends" in wires.router.log()


def test_a_source_steps_the_script_that_controls_the_end(lab):
    text = SORTER + f"""
    source :: RatedSource(\\<{frame(1).hex()}>, 1000, 5, STOP true) -> Queue -> ToDevice(tp-left);
    end :: DriverManager(pause, print "paused", pause, stop);
    """
    wires = Wires(lab, **click(text))
    assert len(wires.left.expect(5)) == 5
    assert wait_for(lambda: 'script "end": paused' in wires.router.log())
    assert wires.router.process.poll() is None
    ControlSocket(wires.inside).write("stop")
    assert wires.router.process.wait(30) == 0

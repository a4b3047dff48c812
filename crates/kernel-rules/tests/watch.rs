//! A watch in a network namespace of its own: each kind of change results in new findings. As root.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use kernel_rules::{Action, Inspection, Kind, Options, Watch};

/// Time after which a change is taken to be lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a test on a thread that has its own network namespace, with a router's two interfaces.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let all = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("the test runs as root");
        for line in ["ip link set lo up", "ip link add eth0 type veth peer name eth1"] {
            run(line);
        }
        for name in ["eth0", "eth1"] {
            run(&format!("ip link set {name} up"));
        }
        set("ipv4/ip_forward", 1);
        test();
    };
    thread::spawn(all).join().unwrap();
}

fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let done = Command::new(words[0]).args(&words[1..]).output().expect(line);
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
}

fn set(setting: &str, value: u8) {
    fs::write(format!("/proc/sys/net/{setting}"), value.to_string()).expect(setting);
}

struct Watched {
    inspections: Receiver<Inspection>,
    _watch: Watch,
}

impl Watched {
    fn new(interfaces: &[&str]) -> Self {
        let names: Vec<String> = interfaces.iter().map(|&name| name.to_owned()).collect();
        let (sender, inspections) = channel();
        let on_change = move |inspection| drop(sender.send(inspection));
        let watch = Watch::start(&names, &Options::default(), || {}, on_change).unwrap();
        Self { inspections, _watch: watch }
    }

    /// Waits for findings that this is true of.
    fn until(&self, what: &str, is: impl Fn(&Inspection) -> bool) {
        loop {
            let next = self.inspections.recv_timeout(PATIENCE);
            let next = next.unwrap_or_else(|_| panic!("{what}: there are no new findings"));
            if is(&next) {
                return;
            }
        }
    }
}

fn has(inspection: &Inspection, kind: Kind, action: Action) -> bool {
    inspection.findings.iter().any(|finding| finding.kind == kind && finding.action == action)
}

/// Makes each change, and reverses it: findings of its kind refuse acceleration meanwhile, and only then.
fn each(watched: &Watched, changes: &[(Kind, &str, &str)]) {
    for &(kind, change, reversal) in changes {
        run(change);
        watched.until(change, |now| has(now, kind, Action::Refuse));
        run(reversal);
        watched.until(reversal, |now| !has(now, kind, Action::Refuse));
    }
}

#[test]
fn each_change_is_noticed_and_each_reversal() {
    in_namespace(|| {
        let watched = Watched::new(&["eth0", "eth1"]);
        watched.until("the first findings", |first| first.obstacles().is_empty());
        run("nft add table ip f");
        run("nft add chain ip f c { type filter hook forward priority 0 ; }");
        let policy = "ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir fwd tmpl proto esp mode transport";
        let changes = [
            (Kind::Nftables, "nft add rule ip f c drop", "nft flush chain ip f c"),
            (Kind::Rules, "ip rule add fwmark 1 lookup 7", "ip rule del fwmark 1 lookup 7"),
            (Kind::Rules, "ip -6 rule add fwmark 1 lookup 7", "ip -6 rule del fwmark 1 lookup 7"),
            (Kind::Tc, "tc qdisc add dev eth0 root htb", "tc qdisc del dev eth0 root"),
            (Kind::Xfrm, policy, "ip xfrm policy flush"),
            (
                Kind::Macvlan,
                "ip link add m0 link eth0 type macvlan mode passthru",
                "ip link del m0",
            ),
        ];
        each(&watched, &changes);
    });
}

#[test]
fn settings_are_noticed_whether_the_kernel_announces_them_or_not() {
    in_namespace(|| {
        let watched = Watched::new(&["eth0", "eth1"]);
        watched.until("the first findings", |_| true);
        for (setting, value, words, action) in [
            ("ipv4/conf/eth0/forwarding", 0, "net.ipv4.conf.eth0.forwarding = 0", Action::Follow),
            ("ipv4/ip_forward", 0, "net.ipv4.ip_forward = 0", Action::Refuse),
            ("ipv4/conf/eth0/rp_filter", 1, "rp_filter = 1", Action::Follow),
            ("ipv4/conf/eth0/accept_local", 1, "accept_local = 1", Action::Stay),
        ] {
            let is_found = |now: &Inspection| {
                now.findings.iter().any(|one| one.action == action && one.message.contains(words))
            };
            set(setting, value);
            watched.until(setting, is_found);
            set(setting, 1 - value);
            watched.until(setting, |now| !is_found(now));
        }
    });
}

#[test]
fn an_interface_may_come_later() {
    in_namespace(|| {
        let watched = Watched::new(&["eth0", "late0"]);
        watched.until("the first findings", |first| has(first, Kind::Interface, Action::Refuse));
        run("ip link add late0 type veth peer name late1");
        watched.until("late0", |now| !has(now, Kind::Interface, Action::Refuse));
        run("ip link del late0");
        watched.until("late0 again", |now| has(now, Kind::Interface, Action::Refuse));
    });
}

#[test]
fn a_stream_of_changes_delays_nothing_for_ever() {
    in_namespace(|| {
        let watched = Watched::new(&["eth0", "eth1"]);
        watched.until("the first findings", |_| true);
        let mut noise = Command::new("ip");
        let mut noise = noise.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = noise.stdin.take().unwrap();
        let writer = thread::spawn(move || {
            for number in 0_u64.. {
                let line =
                    format!("link set eth1 alias n{number}\nroute replace 10.9.0.0/16 dev eth0\n");
                if input.write_all(line.as_bytes()).is_err() {
                    break;
                }
            }
        });
        run("ip rule add fwmark 1 lookup 7");
        watched.until("a rule", |now| has(now, Kind::Rules, Action::Refuse));
        assert!(noise.try_wait().unwrap().is_none(), "there were changes all the time");
        noise.kill().unwrap();
        noise.wait().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn a_dropped_watch_ends_its_thread() {
    in_namespace(|| {
        let watched = Watched::new(&["eth0"]);
        watched.until("the first findings", |_| true);
        let Watched { inspections, _watch } = watched;
        drop(_watch);
        // The thread has the sender.
        while inspections.try_recv().is_ok() {}
        assert!(inspections.recv_timeout(PATIENCE).is_err());
        assert_eq!(inspections.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
    });
}

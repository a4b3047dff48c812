//! Privileges that threads of a router give up, once they have what they need.
//!
//! A thread that speaks to others, or handles their packets, needs few system calls and hardly a capability. Should a
//! defect make it do another's will, the kernel refuses the rest. In Linux capabilities and filters of system calls are a
//! thread's own, and those that it starts have no more; what needs more (modules, namespaces, interfaces) is the
//! business of threads that nobody outside speaks to.
//!
//! | role | system calls refused | files |
//! |---|---|---|
//! | [`Role::Server`] | [`PROGRAMS`] to [`SOCKETS`] | read only |
//! | [`Role::Unit`] | the same, but for the running of BPF programs that are loaded | read only |
//! | [`Role::Writer`] | [`PROGRAMS`] to [`SOCKETS`] | may be made and written |
//! | [`Role::Kernel`] | [`PROGRAMS`], [`VIEWS`] but `setns`, [`KERNEL`] | may be made and written |
//!
//! All keep `CAP_IPC_LOCK`: the router's memory stays in RAM, beyond the limit of one without it. [`Role::Kernel`] keeps
//! `CAP_NET_ADMIN` and `CAP_SYS_ADMIN` as well. A refused call is `EPERM`. `SECURITY.md` has the table of threads, and a
//! scenario compares it with a running router.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;

use caps::{CapSet, Capability, CapsHashSet};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// The business of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Speaks to clients: HTTP, FPM.
    Server,
    /// Handles packets: a forwarder, a slow path worker.
    Unit,
    /// Writes files, for clients or of packets.
    Writer,
    /// Sets up interfaces and routes of the kernel, and goes to the network namespace where they are.
    Kernel,
}

/// The kernel has not taken a privilege.
#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "privileges cannot be given up: {}", self.0)
    }
}

impl std::error::Error for Error {}

/// Other programs, and other processes.
const PROGRAMS: [c_long; 15] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_kcmp,
    libc::SYS_personality,
    libc::SYS_vhangup,
];

/// Another view of the system, and users.
const VIEWS: [c_long; 24] = [
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capset,
];

/// The kernel itself. Calls by io_uring pass no filter.
const KERNEL: [c_long; 31] = [
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
];

/// Changes of files.
const FILES: [c_long; 29] = [
    libc::SYS_creat,
    libc::SYS_truncate,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rmdir,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// The command of `bpf` that runs a program of which the caller has a descriptor: slow path workers return frames to the
/// kernel by it.
const BPF_PROG_TEST_RUN: u64 = 10;

/// Families of sockets that a thread may have; of the first two no raw ones.
const SOCKETS: [i32; 4] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK];

/// Kinds of sockets, without the flags beside them.
const SOCKET_KIND: u64 = 0xf;

/// New namespaces for a new process.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Calls whose flags are in memory, where no filter sees them. Their callers use older ones where these do not exist.
const UNSEEN: [c_long; 2] = [libc::SYS_clone3, libc::SYS_openat2];

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Makes the process and all that it starts keep to the privileges that it has. To be called before there are other
/// threads.
///
/// # Errors
/// The kernel is too old.
pub fn never_more() -> Result<(), Error> {
    nix::sys::prctl::set_no_new_privs().map_err(of("no_new_privs"))
}

/// Gives up what the calling thread does not need in this role: see [`restrict`]. One that the kernel does not take is
/// logged, and the thread works on.
pub fn keep_to(role: Role) {
    if let Err(error) = restrict(role) {
        let thread = std::thread::current();
        tracing::error!("thread {}: {error}", thread.name().unwrap_or("without a name"));
    }
}

/// Gives up all privileges of the calling thread that this role does not need, and of those that it starts from now on.
///
/// # Errors
/// The kernel does not take one of them.
pub fn restrict(role: Role) -> Result<(), Error> {
    let mut kept = CapsHashSet::from([Capability::CAP_IPC_LOCK]);
    if role == Role::Kernel {
        kept.extend([Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN]);
    }
    let permitted = caps::read(None, CapSet::Permitted).map_err(of("capabilities"))?;
    let kept: CapsHashSet = kept.intersection(&permitted).copied().collect();
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        caps::clear(None, set).map_err(of("capabilities"))?;
    }
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).map_err(of("capabilities"))?;
    }
    let unseen = UNSEEN.map(|call| (call, Vec::new())).into();
    apply(unseen, libc::ENOSYS)?;
    apply(refused(role)?, libc::EPERM)
}

/// The calls that are refused.
fn refused(role: Role) -> Result<Rules, Error> {
    let whole = |calls: &[c_long]| calls.iter().map(|call| (*call, Vec::new())).collect::<Rules>();
    let mut rules = whole(&PROGRAMS);
    rules.extend(whole(&VIEWS));
    rules.extend(whole(&KERNEL));
    let has = |flag: &i32| rule(&[(0, Op::MaskedEq(*flag as u64), *flag as u64)]);
    rules.insert(libc::SYS_clone, NAMESPACES.iter().map(has).collect::<Result<_, _>>()?);
    match role {
        Role::Kernel => _ = rules.remove(&libc::SYS_setns),
        _ => _ = rules.insert(libc::SYS_socket, sockets()?),
    }
    if role == Role::Unit {
        rules.insert(libc::SYS_bpf, vec![rule(&[(0, Op::Ne, BPF_PROG_TEST_RUN)])?]);
    }
    if matches!(role, Role::Server | Role::Unit) {
        rules.extend(whole(&FILES));
        rules.insert(libc::SYS_open, writing(1)?);
        rules.insert(libc::SYS_openat, writing(2)?);
    }
    Ok(rules)
}

fn sockets() -> Result<Vec<SeccompRule>, Error> {
    let foreign: Vec<_> = SOCKETS.iter().map(|family| (0, Op::Ne, *family as u64)).collect();
    let raw = |family: i32| {
        rule(&[(0, Op::Eq, family as u64), (1, Op::MaskedEq(SOCKET_KIND), libc::SOCK_RAW as u64)])
    };
    Ok(vec![rule(&foreign)?, raw(libc::AF_INET)?, raw(libc::AF_INET6)?])
}

/// Refuses to open files for writing; the flags are this argument.
fn writing(argument: u8) -> Result<Vec<SeccompRule>, Error> {
    let access = libc::O_ACCMODE as u64;
    let flags = [
        (access, libc::O_WRONLY),
        (access, libc::O_RDWR),
        (libc::O_CREAT as u64, libc::O_CREAT),
        (libc::O_TRUNC as u64, libc::O_TRUNC),
    ];
    flags
        .iter()
        .map(|(mask, flag)| rule(&[(argument, Op::MaskedEq(*mask), *flag as u64)]))
        .collect()
}

/// A rule that holds where all of these do: number of the argument, comparison, value.
fn rule(conditions: &[(u8, Op, u64)]) -> Result<SeccompRule, Error> {
    let condition = |(argument, op, value): &(u8, Op, u64)| {
        SeccompCondition::new(*argument, Len::Dword, op.clone(), *value)
    };
    let conditions: Result<_, _> = conditions.iter().map(condition).collect();
    conditions.and_then(SeccompRule::new).map_err(of("filter"))
}

fn apply(rules: Rules, error: i32) -> Result<(), Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(of("filter"))?;
    let (other, refused) = (SeccompAction::Allow, SeccompAction::Errno(error as u32));
    let filter = SeccompFilter::new(rules, other, refused, arch).map_err(of("filter"))?;
    let program = BpfProgram::try_from(filter).map_err(of("filter"))?;
    seccompiler::apply_filter(&program).map_err(of("filter"))
}

fn of<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> Error {
    move |error| Error(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::process::Command;
    use std::thread;

    use nix::sched::{CloneFlags, setns, unshare};
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

    use super::*;

    /// Runs this on a thread with this role.
    fn on<T: Send + 'static>(role: Role, test: impl FnOnce() -> T + Send + 'static) -> T {
        let body = move || {
            restrict(role).unwrap();
            test()
        };
        thread::spawn(body).join().unwrap()
    }

    #[test]
    fn a_thread_keeps_what_it_needs_and_no_more() {
        for role in [Role::Server, Role::Unit, Role::Writer] {
            let status = on(role, || fs::read_to_string("/proc/thread-self/status").unwrap());
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).unwrap();
                u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
            };
            let most = 1 << Capability::CAP_IPC_LOCK.index();
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert_eq!(field(set) & !most, 0, "{set}");
            }
            assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (1, 2));
        }
    }

    #[test]
    fn other_programs_and_views_are_refused() {
        for role in [Role::Server, Role::Unit, Role::Writer] {
            on(role, || {
                let denied = Some(ErrorKind::PermissionDenied);
                assert_eq!(Command::new("/bin/true").status().err().map(|of| of.kind()), denied);
                let eperm = Err(nix::Error::EPERM);
                assert_eq!(unshare(CloneFlags::CLONE_NEWNS), eperm);
                let namespace = File::open("/proc/self/ns/net").unwrap();
                assert_eq!(setns(namespace, CloneFlags::CLONE_NEWNET), eperm);
                let socket = |family, kind| {
                    socket(family, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp).map(drop)
                };
                assert_eq!(socket(AddressFamily::Inet, SockType::Raw), eperm);
                assert_eq!(socket(AddressFamily::Packet, SockType::Raw), eperm);
                assert_eq!(nix::sys::signal::kill(nix::unistd::getpid(), None), eperm);
                // Threads that it starts have no more.
                let started = thread::spawn(|| Command::new("/bin/true").status().is_err());
                assert!(started.join().unwrap());
            });
        }
    }

    #[test]
    fn only_writers_write_files() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "text").unwrap();
        let attempts = move || {
            assert_eq!(fs::read_to_string(&file).unwrap(), "text");
            let outcomes = [
                File::options().write(true).open(&file).map(drop),
                File::options().append(true).open(&file).map(drop),
                File::create(link.with_extension("new")).map(drop),
                fs::hard_link(&file, &link),
                fs::rename(&link, link.with_extension("other")),
                fs::remove_file(link.with_extension("other")),
                fs::create_dir(link.with_extension("directory")),
            ];
            outcomes.map(|outcome| outcome.map_err(|error| error.kind()))
        };
        let refused = on(Role::Server, attempts.clone());
        assert_eq!(refused, [Err(ErrorKind::PermissionDenied); 7]);
        assert_eq!(on(Role::Unit, attempts.clone()), refused);
        assert_eq!(on(Role::Writer, attempts), [Ok(()); 7]);
    }

    #[test]
    fn a_server_serves() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let unix = UnixListener::bind(&path).unwrap();
        on(Role::Server, move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
            std::os::unix::net::UnixStream::connect(&path).unwrap();
            unix.accept().unwrap();
            assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
        });
    }
}

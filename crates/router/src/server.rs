//! Serves the API on a Unix socket, in a thread of its own: a request may be a configuration of a
//! million lines, and parsing it must not delay the router's owner. Each connection is a task;
//! every request is sent as a message to the owner, which answers when it has time.
//!
//! Routes are requested page by page, the next when the client has received the last: so a million
//! routes neither block the owner nor are in memory together.
//!
//! Each request needs a role of the client (`server/access.rs`). Changes are logged with the client's user and process
//! (`server/audit.rs`).

pub mod access;
pub mod audit;
pub mod capture;
pub mod refusal;

use std::collections::HashMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use api::capture::CaptureRequest;
use api::http::{Operation, Role};
use api::report::Route;
use api::{Answer, Request, RouteFilter, Show};
use control::config::{self, ControlSocket};
use dataplane::capture::Capture;
use dataplane::lock::lock;
use ipnet::IpNet;
use nix::fcntl::OFlag;
use nix::sys::socket::SockType;
use nix::sys::stat::{Mode, fchmod};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Interest};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use web::Patient;

use super::Listeners;
use super::control_socket::{self, ControlSockets};
use super::export::Ask;
use super::owner::CaptureAsker;
use super::runtime;
use super::scripts::Scripts;
use super::telnet::{Acceptor, Opened};
use access::{Peer, Roles};
pub use capture::{Begun, Course};
pub use refusal::Refusal;

/// Longest request line, in bytes: a configuration with a million routes.
const LINE_MAX: u64 = 256 << 20;

/// Longest request line of a client that may not configure.
const SHORT_LINE_MAX: u64 = 64 << 10;

/// Most connections of clients that may not configure, and of one user of those.
const PLACES: usize = 64;
const PLACES_OF_USER: usize = 8;

/// Time limit of those for the next request, and for taking something of an answer.
const IDLE: Duration = Duration::from_secs(60);

/// A request on its way to the owner, with the channel for its answer, whose receiver may be
/// closed.
pub enum Question {
    /// A request with a single answer.
    Request(Request, oneshot::Sender<Answer>),
    /// The routes selected by the filter after this prefix, as many as fit on a page.
    Page(RouteFilter, Option<IpNet>, oneshot::Sender<Result<Page, String>>),
    /// A capture is to begin.
    Capture(CaptureRequest, CaptureAsker),
    /// It has ended.
    EndCapture(Arc<Capture>),
    /// Of the thread of exporters.
    Export(Ask),
}

/// A page of routes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The routes.
    pub routes: Vec<Route>,
    /// The last prefix visited; `None` at the end.
    pub next: Option<IpNet>,
}

/// The bound socket, not yet served; its file is removed when this is dropped.
pub struct Socket {
    listener: StdListener,
    path: PathBuf,
}

impl Socket {
    /// Binds the socket, for members of a group as well. A file left behind by an ended router is replaced; a socket that
    /// answers belongs to a running router, and is an error. `option`: the setting that has the path.
    pub fn bind(path: &Path, option: &str, group: Option<u32>) -> Result<Self> {
        let shown = path.display();
        match StdStream::connect(path) {
            Ok(_) => bail!(
                "socket {shown}: a router is running there already; stop it or choose another {option}"
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => remove_stale(path, option)?,
        }
        // Bound under another name, then renamed, so that a socket under the final name accepts
        // connections.
        let draft = path.with_extension(format!("{}.new", std::process::id()));
        let listener = bind_private(&draft, SockType::Stream).map_err(|error| {
            let way_out = match error.kind() {
                io::ErrorKind::PermissionDenied => format!(
                    "run as root (sudo), or choose a path for {option} in a directory of your own"
                ),
                _ => format!("choose a path for {option} in a directory that exists"),
            };
            Error::from(error).context(format!("socket {shown}: cannot be made; {way_out}"))
        })?;
        if let Some(number) = group {
            let shared = share(&draft, group).inspect_err(|_| _ = fs::remove_file(&draft));
            shared.with_context(|| format!("socket {shown}: cannot be given to group {number}"))?;
        }
        if let Err(error) = fs::rename(&draft, path) {
            let _ = fs::remove_file(&draft);
            return Err(error).with_context(|| format!("socket {shown}: cannot be made"));
        }
        Ok(Self { listener: listener.into(), path: path.to_owned() })
    }

    /// The listener.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn listener(&self) -> io::Result<StdListener> {
        self.listener.try_clone()
    }

    /// Lets members of a group connect, or nobody but its owner.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn share(&self, group: Option<u32>) -> io::Result<()> {
        share(&self.path, group)
    }

    /// Returns its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts connections for ever, sending their requests to `questions`.
    async fn serve(&self, questions: mpsc::Sender<Question>, roles: Arc<Roles>) -> Result<()> {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        let places = Arc::new(Places::default());
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (questions, roles, places) =
                        (questions.clone(), roles.clone(), places.clone());
                    tokio::spawn(async move {
                        match enter(&stream, &roles, &places) {
                            Ok(place) => converse(stream, questions, roles, place).await,
                            // A new connection's buffer has room for this.
                            Err(reason) => _ = stream.try_write(reason.as_bytes()),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("socket {}: {error}", self.path.display());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// The thread that serves clients; dropping this ends it and removes the socket's file.
pub struct Service {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket: Arc<Socket>,
    runtime: Handle,
    telnet: Acceptor,
    control: ControlSockets,
    scripts: Scripts,
    questions: mpsc::Sender<Question>,
}

impl Service {
    /// Serves clients of the socket, and telnet clients, whose sessions are clients of the socket.
    ///
    /// # Errors
    /// A thread or a runtime cannot be created.
    pub fn start(
        Listeners { socket, roles, acceptor, telnet, control, metrics: _, api: _ }: Listeners,
        questions: mpsc::Sender<Question>,
    ) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime::build("api-aside", Some(privileges::Role::Writer))?;
        let handle = runtime.handle().clone();
        let (asking, socket) = (questions.clone(), Arc::new(socket));
        let serving = socket.clone();
        let body = move || {
            privileges::keep_to(privileges::Role::Writer);
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    _ = serving.serve(asking, roles) => {}
                }
            });
            // A telnet client's command may wait for the owner, which waits for this thread.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("api".to_owned()).spawn(body)?;
        let mut service = Self {
            stop: Some(stop),
            thread: Some(thread),
            socket,
            runtime: handle,
            telnet: acceptor,
            control: ControlSockets::default(),
            scripts: Scripts::default(),
            questions,
        };
        service.serve_telnet(telnet);
        let (sockets, opened) = control;
        service.serve_control(&sockets, Some(opened));
        Ok(service)
    }

    /// Lets members of a group connect to the socket, or nobody but its owner.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn share(&self, group: Option<u32>) -> io::Result<()> {
        self.socket.share(group)
    }

    /// Returns the way to the owner.
    pub fn questions(&self) -> &mpsc::Sender<Question> {
        &self.questions
    }

    /// Opens a telnet service with these settings beside the one that is served.
    ///
    /// # Errors
    /// Those of [`Acceptor::open`].
    pub fn open_telnet(&self, settings: &config::Telnet, socket: &Path) -> Result<Opened> {
        self.telnet.open(settings, socket)
    }

    /// Opens what these control sockets need beside those that are served.
    ///
    /// # Errors
    /// Those of [`ControlSockets::open`].
    pub fn open_control(&self, wanted: &[ControlSocket]) -> Result<control_socket::Opened> {
        self.control.open(wanted)
    }

    /// Serves these control sockets from now on, if they are opened.
    pub fn serve_control(
        &mut self,
        wanted: &[ControlSocket],
        opened: Option<control_socket::Opened>,
    ) {
        if let Some(opened) = opened {
            self.control.serve(wanted, opened, (&self.runtime, &self.questions));
        }
    }

    /// Runs the scripts of these elements from now on.
    pub fn serve_scripts(&mut self, elements: &[config::Element]) {
        self.scripts.serve(elements, (&self.runtime, &self.questions));
    }

    /// Returns the scripts that run.
    pub fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    /// Serves new telnet clients by this service from now on, or none.
    pub fn serve_telnet(&mut self, opened: Option<Opened>) {
        self.telnet.serve(opened, &self.runtime);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Lets members of a group connect to a socket, or nobody but its owner. The file is opened once: whatever somebody puts
/// in its place meanwhile is not touched.
fn share(path: &Path, group: Option<u32>) -> io::Result<()> {
    let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("another file has taken its place"));
    }
    let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if group.is_none() {
        return fs::set_permissions(&opened, Permissions::from_mode(0o600));
    }
    chown(&opened, None, group)?;
    fs::set_permissions(&opened, Permissions::from_mode(0o660))
}

/// Creates a listening socket whose file only its owner can ever open: the kernel gives the file
/// the mode that the socket has when it is bound, regardless of the process's umask.
pub(crate) fn bind_private(path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, UnixAddr, bind, listen, socket};
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, kind, flags, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket)
}

pub(crate) fn remove_stale(path: &Path, option: &str) -> Result<()> {
    let shown = path.display();
    let kind = fs::symlink_metadata(path).with_context(|| format!("socket {shown}"))?.file_type();
    if !kind.is_socket() {
        bail!("socket {shown}: a file that is not a socket; remove it or choose another {option}");
    }
    fs::remove_file(path).with_context(|| format!("socket {shown}: cannot remove the stale one"))
}

/// Answers one client's requests until it disconnects.
async fn converse(
    stream: UnixStream,
    questions: mpsc::Sender<Question>,
    roles: Arc<Roles>,
    place: Option<Place>,
) {
    let client = audit::Client::of(&stream);
    let peer = Peer::of(&stream);
    let (read, write) = stream.into_split();
    let mut read = BufReader::new(read);
    let (longest, idle) = match place {
        Some(_) => (SHORT_LINE_MAX, IDLE),
        None => (LINE_MAX, Duration::MAX),
    };
    let mut write = Patient::new(write, idle);
    let may_ask = || peer.as_ref().is_ok_and(|peer| roles.role_of(peer).is_some());
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut read).take(longest);
        match timeout(idle, bounded.read_until(b'\n', &mut line)).await {
            Ok(Ok(0) | Err(_)) | Err(_) => return,
            Ok(Ok(_)) => {}
        }
        let too_long = line.len() as u64 == longest && line.last() != Some(&b'\n');
        let request = if too_long {
            Err(format!("the request is longer than {longest} bytes"))
        } else {
            Request::read(&line)
                .map_err(|error| format!("the request cannot be read: {error}"))
                .and_then(|request| admit(request, (&client, &peer), &roles))
        };
        let written = match request {
            Ok(Request::Show(Show::Routes(filter))) => {
                write_routes(&mut write, filter, &questions).await
            }
            Ok(Request::Capture(request)) => {
                let change = audit::change(&Request::Capture(request.clone()));
                let begun = |answer: &Answer| {
                    change.iter().for_each(|change| client.record(change, answer));
                };
                // The connection is the capture's. Its end is the client's affair.
                let _ = capture::serve((&mut read, &mut write), request, &questions, begun).await;
                return;
            }
            Ok(request) => {
                let change = audit::change(&request);
                let may_end = matches!(request, Request::Trace(_));
                let answer = tokio::select! {
                    outcome = ask(request, &questions) => refusal::answer(outcome),
                    () = hung_up(write.get_ref()), if may_end => return,
                };
                if let Some(change) = change {
                    client.record(&change, &answer);
                }
                write_answer(&mut write, &answer).await
            }
            Err(reason) => write_answer(&mut write, &Answer::Error(reason)).await,
        };
        // A client without a role has had its answer.
        if written.is_err() || too_long || !may_ask() {
            return;
        }
    }
}

/// Connections of clients that may not configure, by user; others need no place.
#[derive(Default)]
struct Places(Mutex<HashMap<u32, usize>>);

/// The place of a connection; dropping it gives it back.
struct Place {
    places: Arc<Places>,
    user: u32,
}

impl Places {
    /// Gives a user a place, if there is one.
    fn take(self: &Arc<Self>, user: u32) -> Option<Place> {
        let mut taken = lock(&self.0);
        let own = taken.get(&user).copied().unwrap_or(0);
        if own >= PLACES_OF_USER || taken.values().sum::<usize>() >= PLACES {
            return None;
        }
        taken.insert(user, own + 1);
        Some(Place { places: self.clone(), user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.0);
        let left = taken.get(&self.user).map_or(0, |own| own.saturating_sub(1));
        match left {
            0 => taken.remove(&self.user),
            left => taken.insert(self.user, left),
        };
    }
}

/// Gives a client a place, if it needs one; or an answer for it, if there is none.
fn enter(
    stream: &UnixStream,
    roles: &Roles,
    places: &Arc<Places>,
) -> Result<Option<Place>, String> {
    let role = Peer::of(stream).ok().and_then(|peer| roles.role_of(&peer));
    if role == Some(Role::Configure) {
        return Ok(None);
    }
    let place = stream.peer_cred().ok().and_then(|user| places.take(user.uid()));
    let reason = "{\"error\":\"too many clients are connected; try again later\"}\n";
    place.map(Some).ok_or_else(|| reason.to_owned())
}

/// Returns the request, if the client has the role that it needs.
fn admit(
    request: Request,
    (client, peer): (&audit::Client, &io::Result<Peer>),
    roles: &Roles,
) -> Result<Request, String> {
    let operation = Operation::of(&request);
    let admitted = match peer {
        Ok(peer) => roles.admit(operation, roles.role_of(peer), || peer.name()),
        Err(error) => Err(format!("the kernel does not tell the user of this connection: {error}")),
    };
    match admitted {
        Ok(_) => Ok(request),
        Err(reason) => {
            roles.log(client, operation, Some(&request), &reason);
            Err(reason)
        }
    }
}

/// Returns once the client has closed the connection, within a second. One that only sends nothing more still waits.
async fn hung_up(write: &OwnedWriteHalf) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if !matches!(write.ready(Interest::WRITABLE).await, Ok(ready) if !ready.is_write_closed()) {
            return;
        }
    }
}

/// Sends a request to the owner and returns its answer.
///
/// # Errors
/// The owner refuses it; or the router ends.
pub async fn ask(
    request: Request,
    questions: &mpsc::Sender<Question>,
) -> Result<serde_json::Value, Refusal> {
    let (answer, wait) = oneshot::channel();
    let question = Question::Request(request, answer);
    questions.send(question).await.map_err(|_| Refusal::Ending)?;
    match wait.await.map_err(|_| Refusal::Ending)? {
        Answer::Ok(report) => Ok(report),
        Answer::Error(reason) => Err(Refusal::Because(reason)),
    }
}

/// Asks for the routes behind a prefix, as many as fit on a page.
///
/// # Errors
/// Those of the filter; or the router ends.
pub async fn ask_page(
    filter: &RouteFilter,
    after: Option<IpNet>,
    questions: &mpsc::Sender<Question>,
) -> Result<Page, Refusal> {
    let (answer, wait) = oneshot::channel();
    let question = Question::Page(filter.clone(), after, answer);
    questions.send(question).await.map_err(|_| Refusal::Ending)?;
    wait.await.map_err(|_| Refusal::Ending)?.map_err(Refusal::Because)
}

async fn write_answer(write: &mut (impl AsyncWrite + Unpin), answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    write.write_all(&text).await
}

/// Writes `{"ok":[ROUTE,…]}` page by page. If the router ends meanwhile, the line stays unfinished.
async fn write_routes(
    write: &mut (impl AsyncWrite + Unpin),
    filter: RouteFilter,
    questions: &mpsc::Sender<Question>,
) -> io::Result<()> {
    let mut page = match ask_page(&filter, None, questions).await {
        Ok(page) => page,
        Err(refusal) => return write_answer(write, &refusal.into()).await,
    };
    let mut text = b"{\"ok\":[".to_vec();
    let mut first = true;
    loop {
        for route in &page.routes {
            if !std::mem::take(&mut first) {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, route)?;
        }
        write.write_all(&text).await?;
        text.clear();
        let Some(next) = page.next else { break };
        page = ask_page(&filter, Some(next), questions).await.map_err(io::Error::other)?;
    }
    write.write_all(b"]}\n").await
}

#[cfg(test)]
mod tests {
    use super::super::testing::route;
    use super::*;

    /// Simulates a router with the networks 10.0.0.0/24, 10.0.1.0/24, …, three on a page.
    async fn answer_pages(mut questions: mpsc::Receiver<Question>, count: u8) {
        while let Some(question) = questions.recv().await {
            match question {
                Question::Request(_, answer) => {
                    let _ = answer.send(Answer::Ok("fine".into()));
                }
                Question::Capture(_, answer) => {
                    let _ = answer.send(Err("no captures here".to_owned()));
                }
                Question::EndCapture(_) | Question::Export(_) => {}
                Question::Page(filter, _, answer) if filter.source.is_some() => {
                    let _ = answer.send(Err("no such source".to_owned()));
                }
                Question::Page(_, after, answer) => {
                    let net = |n: u8| format!("10.0.{n}.0/24").parse::<IpNet>().unwrap();
                    let from = (0..count).filter(|&n| after.is_none_or(|after| net(n) > after));
                    let nets: Vec<IpNet> = from.take(3).map(net).collect();
                    let next = nets.last().copied().filter(|&last| last != net(count - 1));
                    let routes = nets.iter().map(|net| route(&net.to_string())).collect();
                    let _ = answer.send(Ok(Page { routes, next }));
                }
            }
        }
    }

    /// Returns the answers to these lines, for a table of this size.
    fn talk(lines: &str, count: u8) -> Vec<serde_json::Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, server) = UnixStream::pair().unwrap();
            let (ask, questions) = mpsc::channel(1);
            tokio::spawn(answer_pages(questions, count));
            tokio::spawn(converse(server, ask, Arc::default(), None));
            let (mut read, mut write) = client.into_split();
            write.write_all(lines.as_bytes()).await.unwrap();
            write.shutdown().await.unwrap();
            let mut text = String::new();
            read.read_to_string(&mut text).await.unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        })
    }

    /// The mode is right from the first moment, before anything can have changed it.
    #[test]
    fn the_sockets_file_is_its_owners_alone_whatever_the_umask() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("router.sock");
        let before = nix::sys::stat::umask(Mode::empty());
        let bound = bind_private(&path, SockType::Stream);
        nix::sys::stat::umask(before);
        let listener = std::os::unix::net::UnixListener::from(bound.unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let client = StdStream::connect(&path).unwrap();
        let (_, from) = (client, listener.accept().unwrap());
        drop(from);
    }

    /// A service has a restrictive umask.
    #[test]
    fn a_groups_socket_is_open_to_the_group_whatever_the_umask() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.sock");
        let before = nix::sys::stat::umask(Mode::S_IRWXG | Mode::S_IRWXO);
        let own = nix::unistd::getegid().as_raw();
        let bound = Socket::bind(&path, "socket", Some(own));
        nix::sys::stat::umask(before);
        let socket = bound.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert_eq!(std::os::unix::fs::MetadataExt::gid(&fs::metadata(&path).unwrap()), own);
        socket.share(None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Socket::bind(&path, "turnpike.x", None).err().unwrap().to_string();
        assert!(error.ends_with("stop it or choose another turnpike.x"), "{error}");
        drop(socket);
        assert!(!path.exists());
    }

    /// A link that somebody puts in the socket's place leads nowhere.
    #[test]
    fn another_file_in_the_sockets_place_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (secret, link) = (directory.path().join("secret"), directory.path().join("link"));
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        assert!(share(&link, Some(0)).is_err() && share(&secret, Some(0)).is_err());
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn routes_of_many_pages_are_one_answer() {
        for count in [1, 3, 7] {
            let answers = talk("{\"show\":\"routes\"}\n{\"show\":\"ports\"}\n", count);
            let expected = usize::from(count);
            let routes = answers[0]["ok"].as_array().unwrap();
            assert_eq!(routes.len(), expected);
            assert_eq!(routes[expected - 1]["prefix"], format!("10.0.{}.0/24", expected - 1));
            assert_eq!(answers[1]["ok"], "fine", "the connection goes on");
        }
    }

    #[test]
    fn users_have_few_places_each() {
        let places = Arc::new(Places::default());
        let of = |user: u32| -> Vec<_> { std::iter::from_fn(|| places.take(user)).collect() };
        let first = of(1);
        assert_eq!((first.len(), of(1).len()), (PLACES_OF_USER, 0));
        let others: Vec<_> = (2..100).map(of).collect();
        assert_eq!(others.iter().map(Vec::len).sum::<usize>(), PLACES - PLACES_OF_USER);
        drop(first);
        assert_eq!(of(100).len(), PLACES_OF_USER);
        drop(others);
        assert!(lock(&places.0).is_empty());
    }

    #[test]
    fn errors_are_answers_too() {
        let answers = talk("{\"show\":{\"routes\":{\"source\":\"x\"}}}\nhello\n", 1);
        assert_eq!(answers[0]["error"], "no such source");
        assert!(answers[1]["error"].as_str().unwrap().starts_with("the request cannot be read"));
    }
}

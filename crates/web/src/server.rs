//! The server's thread, and the limits of its connections.
//!
//! | limit | beyond |
//! |---|---|
//! | [`CONNECTIONS`] of each listener | the newest replaces the oldest, of those with the lowest rank ([`Visit::know`]) and of the address with the most of them |
//! | [`HEAD_PATIENCE`] for a handshake of TLS | closed |
//! | [`HEAD_PATIENCE`] for the head of a request, or for the next one | closed |
//! | [`HEAD_MAX`] bytes of a head | 431, closed |
//! | [`BODY_MAX`] bytes of a body that a handler reads by an extractor | 413 |
//! | [`Limits::life`] of a connection | closed after the response, or by force after [`LAST_WORDS`] |
//! | [`STALL`] in which a client takes nothing | closed |
//!
//! The newest connection always gets in: clients that only hold connections, in whatever number, keep no scraper out,
//! and each listener has places of its own. A flood from one address takes the places of that address, so that a
//! handshake over a long way comes to its end.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use privileges::Role;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::Pages;
use crate::patient::Patient;
use crate::tls::{self, Present, Session};

/// Most connections of a listener.
const CONNECTIONS: usize = 64;

/// Time limit for the head of a request, and for the next request of a connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;

/// Most bytes of a request's body.
const BODY_MAX: usize = 64 << 10;

/// Time in which a client must take something of a response.
const STALL: Duration = Duration::from_secs(30);

/// Time limit for a response that is being sent then.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Pause after a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket, which does not block.
#[derive(Debug)]
pub enum Listener {
    /// In the file system.
    Unix(StdUnixListener),
    /// By TCP.
    Tcp(StdTcpListener),
    /// By TCP with TLS.
    Tls(StdTcpListener, Door),
}

/// Takes the reason for which a handshake with this client failed, which is the client's choice.
pub type Refused = dyn Fn(SocketAddr, &io::Error) + Send + Sync;

/// TLS of a listener.
#[derive(Clone)]
pub struct Door {
    /// For the next handshakes.
    pub tls: Present,
    /// For failed ones.
    pub refused: Arc<Refused>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

/// Limits that depend on the purpose of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time after which a connection is closed, between two responses.
    pub life: Option<Duration>,
    /// Clients are known by their first request, all with the same rank; else by [`Visit::know`].
    pub open: bool,
}

impl Limits {
    /// For answers of a moment, for anybody.
    pub const SHORT: Self = Self { life: Some(Duration::from_secs(60)), open: true };
    /// For answers that may take long, for clients who prove who they are. One that closes its direction is gone.
    pub const LONG: Self = Self { life: None, open: false };
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub enum End {
    /// Of a Unix socket: a descriptor of the connection.
    Unix(Arc<OwnedFd>),
    /// By TCP.
    Tcp {
        /// The address of this end.
        local: SocketAddr,
        /// The address of the other end.
        peer: SocketAddr,
        /// Its TLS, if it has that.
        tls: Option<Session>,
    },
}

impl End {
    /// Returns the TLS of the connection, if it has that.
    pub fn tls(&self) -> Option<&Session> {
        match self {
            Self::Tcp { tls, .. } => tls.as_ref(),
            Self::Unix(_) => None,
        }
    }

    /// The network of the other end that one client may have for itself: an address of IPv4, 64 bits of IPv6.
    fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp { peer, .. } => Some(match peer.ip().to_canonical() {
                IpAddr::V6(address) => {
                    let network = u128::from(address) >> 64 << 64;
                    Ipv6Addr::from(network).into()
                }
                address => address,
            }),
        }
    }
}

/// The connection of a request. A retired server lives until all copies are gone, so a task that outlives the response
/// holds one.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The other end.
    pub end: End,
    socket: Arc<OwnedFd>,
    rank: Arc<AtomicU8>,
    _retired: watch::Receiver<bool>,
}

impl Visit {
    /// Lets the connection stay before those of lower ranks. Clients that are not known have rank 0.
    pub fn know(&self, rank: u8) {
        self.rank.store(rank, Ordering::Relaxed);
    }

    /// Returns once the client has closed the connection, or its direction. The server itself does not notice that of a
    /// client that has sent something behind its request.
    pub async fn gone(&self) {
        // Only asked for events, whichever family it is of.
        let socket = self.socket.try_clone().map(Into::into).and_then(UnixStream::from_std);
        // Without a free descriptor nobody notices.
        let Ok(socket) = socket else { return pending().await };
        loop {
            match socket.ready(Interest::READABLE).await {
                Ok(ready) if ready.is_read_closed() => return,
                // Until the next event.
                Ok(_) => _ = socket.try_io(Interest::READABLE, nothing_read),
                Err(_) => return pending().await,
            }
        }
    }
}

fn nothing_read() -> io::Result<()> {
    Err(io::ErrorKind::WouldBlock.into())
}

/// A running server; dropping it ends its thread and closes its connections.
#[derive(Debug)]
pub struct Server {
    /// True is sent to retire it.
    stop: Option<oneshot::Sender<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves these pages to clients of these listeners. Requests have a [`Visit`] among their extensions.
    ///
    /// # Errors
    /// A thread or a runtime cannot be created.
    pub fn start(listeners: Vec<Listener>, pages: Pages, limits: Limits) -> io::Result<Self> {
        let pages = pages.layer(DefaultBodyLimit::max(BODY_MAX));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (retire, retired) = watch::channel(false);
        let house = House { pages, limits, retired };
        let mut doors = Vec::new();
        {
            let _inside = runtime.enter();
            for listener in listeners {
                let house = house.clone();
                doors.push(match listener {
                    Listener::Unix(listener) => {
                        let listener = UnixListener::from_std(listener)?;
                        runtime.spawn(serve(async move || by_unix(&listener).await, house, None))
                    }
                    Listener::Tcp(listener) => {
                        let listener = TcpListener::from_std(listener)?;
                        runtime.spawn(serve(async move || by_tcp(&listener).await, house, None))
                    }
                    Listener::Tls(listener, door) => {
                        let listener = TcpListener::from_std(listener)?;
                        let accept = async move || by_tcp(&listener).await;
                        runtime.spawn(serve(accept, house, Some(door)))
                    }
                });
            }
        }
        drop(house);
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            privileges::keep_to(Role::Server);
            runtime.block_on(async {
                // An error means that the server was dropped.
                if stopped.await == Ok(true) {
                    doors.iter().for_each(|door| door.abort());
                    // There may be no connections.
                    let _ = retire.send(true);
                    let _ = timeout(2 * LAST_WORDS, retire.closed()).await;
                }
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("web".to_owned()).spawn(body)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Server {
    /// Accepts no more connections, and closes those that there are behind their responses, without waiting for that.
    pub fn retire(mut self) {
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(true));
        self.thread = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(false));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A connection that may be closed for another.
#[derive(Debug)]
struct Place {
    task: AbortHandle,
    rank: Arc<AtomicU8>,
    source: Option<IpAddr>,
}

impl Place {
    fn rank(&self) -> u8 {
        self.rank.load(Ordering::Relaxed)
    }
}

/// State of all connections.
#[derive(Clone)]
struct House {
    pages: Pages,
    limits: Limits,
    retired: watch::Receiver<bool>,
}

/// The connections of a listener, the oldest first.
#[derive(Debug, Default)]
struct Places(VecDeque<Place>);

impl Places {
    /// Makes room for one more.
    fn make_room(&mut self) {
        self.0.retain(|place| !place.task.is_finished());
        while self.0.len() >= CONNECTIONS {
            let Some(place) = self.least().and_then(|at| self.0.remove(at)) else { return };
            place.task.abort();
        }
    }

    /// The oldest one of the lowest rank, and of the source with the most of these.
    fn least(&self) -> Option<usize> {
        let lowest = self.0.iter().map(Place::rank).min()?;
        let mut held: HashMap<Option<IpAddr>, usize> = HashMap::new();
        let is_low = |place: &&Place| place.rank() == lowest;
        self.0.iter().filter(is_low).for_each(|place| *held.entry(place.source).or_default() += 1);
        let most = held.values().copied().max()?;
        self.0.iter().position(|place| is_low(&place) && held[&place.source] == most)
    }
}

/// Serves all connections that `accept` returns.
async fn serve<S>(
    accept: impl AsyncFn() -> io::Result<Arrival<S>>,
    house: House,
    door: Option<Door>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut places = Places::default();
    let mut is_failing = false;
    loop {
        match accept().await {
            Ok((stream, socket, end)) => {
                is_failing = false;
                places.make_room();
                let rank = Arc::new(AtomicU8::new(0));
                let retired = house.retired.clone();
                let source = end.source();
                let visit = Visit { end, socket, rank: rank.clone(), _retired: retired };
                let task = tokio::spawn(receive(stream, visit, house.clone(), door.clone()));
                places.0.push_back(Place { task: task.abort_handle(), rank, source });
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!("web: a connection cannot be accepted: {error}");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Serves a connection, behind a handshake where there is a door.
async fn receive<S>(stream: S, mut visit: Visit, house: House, door: Option<Door>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Below TLS, whose last words would wait for their reader, too.
    let stream = Patient::new(stream, STALL);
    let Some(door) = door else { return converse(stream, visit, house).await };
    // Silence, and a client that leaves, are no news.
    match timeout(HEAD_PATIENCE, tls::accept(stream, door.tls)).await {
        Ok(Ok((stream, session))) => {
            if let End::Tcp { tls, .. } = &mut visit.end {
                *tls = Some(session);
            }
            converse(stream, visit, house).await;
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            if let End::Tcp { peer, .. } = visit.end {
                (door.refused)(peer, &error);
            }
        }
        _ => {}
    }
}

/// Answers the requests of a connection.
async fn converse<S>(stream: S, visit: Visit, House { pages, limits, mut retired }: House)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pages = TowerToHyperService::new(pages);
    let service = hyper::service::service_fn(|mut request: hyper::Request<Incoming>| {
        if limits.open {
            visit.know(1);
        }
        request.extensions_mut().insert(visit.clone());
        pages.call(request.map(Body::new))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(HEAD_MAX)
        // A client that has said everything may close its direction, unless that ends a long answer.
        .half_close(limits.life.is_some());
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = life(limits) => {}
        // An error means that the server ends.
        _ = retired.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    // Its end is a client's affair.
    let _ = timeout(LAST_WORDS, connection).await;
}

/// Returns when a connection has existed for long enough.
async fn life(limits: Limits) {
    match limits.life {
        Some(life) => sleep(life).await,
        None => pending().await,
    }
}

/// A new connection, a second descriptor of it, and its other end.
type Arrival<S> = (S, Arc<OwnedFd>, End);

async fn by_unix(listener: &UnixListener) -> io::Result<Arrival<UnixStream>> {
    let (stream, _) = listener.accept().await?;
    let copy = Arc::new(stream.as_fd().try_clone_to_owned()?);
    Ok((stream, copy.clone(), End::Unix(copy)))
}

async fn by_tcp(listener: &TcpListener) -> io::Result<Arrival<TcpStream>> {
    let (stream, peer) = listener.accept().await?;
    let local = stream.local_addr()?;
    let copy = Arc::new(stream.as_fd().try_clone_to_owned()?);
    Ok((stream, copy, End::Tcp { local, peer, tls: None }))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::sync::atomic::AtomicBool;

    use axum::Extension;
    use axum::routing::{get, post};

    use super::*;

    fn server() -> (Server, SocketAddr) {
        server_with(Limits::SHORT)
    }

    /// The slow page has been asked for.
    static BEGUN: AtomicBool = AtomicBool::new(false);

    fn server_with(limits: Limits) -> (Server, SocketAddr) {
        let listener = StdTcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let length = async |body: bytes::Bytes| body.len().to_string();
        let slow = async || {
            BEGUN.store(true, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            "late"
        };
        let known = async |Extension(visit): Extension<Visit>| visit.know(1);
        let higher = async |Extension(visit): Extension<Visit>| visit.know(2);
        let pages = Pages::new()
            .route("/", get(async || "here"))
            .route("/length", post(length))
            .route("/slow", get(slow))
            .route("/known", get(known))
            .route("/higher", get(higher));
        (Server::start(vec![Listener::Tcp(listener)], pages, limits).unwrap(), address)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// The response to these bytes, after which the client closes its direction.
    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = connect(address);
        // A server that refuses the request may close before it is sent.
        let _ = stream.write_all(request).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn a_client_that_closes_its_direction_is_answered() {
        let (_server, address) = server();
        let answer = ask(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
    }

    #[test]
    fn heads_and_bodies_are_bounded() {
        let (_server, address) = server();
        let head = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(2 * HEAD_MAX));
        let answer = ask(address, head.as_bytes());
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        let post = |length: usize| {
            let head =
                format!("POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
            ask(address, &[head.as_bytes(), &vec![b'x'; length]].concat())
        };
        assert!(post(BODY_MAX).ends_with(&BODY_MAX.to_string()));
        assert!(post(BODY_MAX + 1).starts_with("HTTP/1.1 413"));
    }

    #[test]
    fn the_newest_connection_gets_in_and_the_oldest_silent_one_leaves() {
        let (_server, address) = server();
        let read = |stream: &mut TcpStream| {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
        };
        let mut first = connect(address);
        read(&mut first);
        let mut silent: Vec<_> = (0..2 * CONNECTIONS).map(|_| connect(address)).collect();
        silent.iter_mut().for_each(|stream| stream.write_all(b"GET /").unwrap());
        read(&mut connect(address));
        assert_eq!(silent[0].read(&mut [0]).map_err(|error| error.kind()).unwrap_or(0), 0);
        // It has asked, and so stays before all that have not.
        first.set_nonblocking(true).unwrap();
        let mut rest = Vec::new();
        let end = first.read_to_end(&mut rest).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_retired_server_finishes_its_answers() {
        let (server, address) = server_with(Limits::LONG);
        let mut idle = connect(address);
        let mut stream = connect(address);
        stream.write_all(b"GET /known HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 12]).unwrap();
        stream.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        while !BEGUN.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        server.retire();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("late"), "{answer}");
        assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0);
    }

    #[test]
    fn the_oldest_of_the_lowest_rank_leaves_first() {
        let (_server, address) = server_with(Limits::LONG);
        let ask = |stream: &mut TcpStream, path: &str| {
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).map(|()| assert_eq!(&answer, b"HTTP/1.1 200"))
        };
        let (mut higher, mut known, mut asked) =
            (connect(address), connect(address), connect(address));
        ask(&mut higher, "/higher").unwrap();
        ask(&mut known, "/known").unwrap();
        ask(&mut asked, "/").unwrap();
        let others: Vec<_> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        ask(&mut connect(address), "/").unwrap();
        let is_open = |stream: &mut TcpStream| {
            stream.set_nonblocking(true).unwrap();
            stream
                .read_to_end(&mut Vec::new())
                .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
        };
        assert!(is_open(&mut known) && !is_open(&mut asked));
        drop(others);
        let others: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let mut other = connect(address);
                ask(&mut other, "/known").unwrap();
                other
            })
            .collect();
        assert!(is_open(&mut higher) && !is_open(&mut known));
        drop(others);
    }

    #[test]
    fn a_flood_from_one_address_leaves_those_of_others() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let place = |source: &str, rank: u8| {
            let task = runtime.spawn(pending::<()>()).abort_handle();
            let peer = source.parse().unwrap();
            let end = End::Tcp { local: peer, peer, tls: None };
            Place { task, rank: Arc::new(rank.into()), source: end.source() }
        };
        let mut places = Places::default();
        places.0.push_back(place("192.0.2.1:1", 0));
        places.0.push_back(place("10.0.0.1:1", 1));
        for port in 0..3 * CONNECTIONS {
            places.make_room();
            // Addresses within one network of IPv6 are one client's.
            places.0.push_back(place(&format!("[2001:db8::{port}]:9"), 0));
        }
        let sources: Vec<_> = places.0.iter().map(|place| place.source.unwrap()).collect();
        assert_eq!(sources.len(), CONNECTIONS);
        assert_eq!(
            sources[..2],
            ["192.0.2.1".parse::<IpAddr>().unwrap(), "10.0.0.1".parse().unwrap()]
        );
        // Mapped addresses are those of IPv4.
        let source = place("[::ffff:192.0.2.1]:1", 0).source;
        assert_eq!(source, Some("192.0.2.1".parse().unwrap()));
    }

    /// A client that has sent something behind its request, and one that has not, as the server sees it.
    #[test]
    fn a_client_that_leaves_is_gone_whatever_it_has_sent() {
        for sent in [&b""[..], b"x"] {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let (here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
            here.set_nonblocking(true).unwrap();
            let socket = Arc::new(OwnedFd::from(here));
            let (_retire, retired) = watch::channel(false);
            let (end, rank) = (End::Unix(socket.clone()), Arc::default());
            let visit = Visit { end, socket, rank, _retired: retired };
            there.write_all(sent).unwrap();
            runtime.block_on(async {
                let mut gone = pin!(visit.gone());
                tokio::select! {
                    biased;
                    () = &mut gone => panic!("it is there"),
                    () = sleep(Duration::from_millis(20)) => {}
                }
                drop(there);
                timeout(Duration::from_secs(30), gone).await.unwrap();
            });
        }
    }

    #[test]
    fn a_dropped_server_closes_its_connections() {
        let (server, address) = server();
        let mut stream = connect(address);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 12]).unwrap();
        drop(server);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(TcpStream::connect(address).is_err());
    }
}

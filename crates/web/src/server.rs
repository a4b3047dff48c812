//! The server's thread, and the limits of its connections.
//!
//! | limit | beyond |
//! |---|---|
//! | [`CONNECTIONS`] of each listener | the newest replaces the oldest, first one that has not sent a whole request |
//! | [`HEAD_PATIENCE`] for the head of a request, or for the next one | closed |
//! | [`HEAD_MAX`] bytes of a head | 431, closed |
//! | [`BODY_MAX`] bytes of a body that a handler reads | 413 |
//! | [`LIFE`] of a connection | closed after the response, or by force after [`LAST_WORDS`] |
//!
//! The newest connection always gets in: clients that only hold connections, in whatever number, keep no scraper out,
//! and each listener has places of its own.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use hyper::server::conn::http1;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::Pages;

/// Most connections of a listener.
const CONNECTIONS: usize = 64;

/// Time limit for the head of a request, and for the next request of a connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;

/// Most bytes of a request's body.
const BODY_MAX: usize = 64 << 10;

/// Time after which a connection is closed, between two responses.
const LIFE: Duration = Duration::from_secs(60);

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
}

/// A running server; dropping it ends its thread and closes its connections.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves these pages to clients of these listeners.
    ///
    /// # Errors
    /// A thread or a runtime cannot be created.
    pub fn start(listeners: Vec<Listener>, pages: Pages) -> io::Result<Self> {
        let pages = pages.layer(DefaultBodyLimit::max(BODY_MAX));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        {
            let _inside = runtime.enter();
            for listener in listeners {
                match listener {
                    Listener::Unix(listener) => {
                        let listener = UnixListener::from_std(listener)?;
                        runtime.spawn(serve(
                            async move || Ok(listener.accept().await?.0),
                            pages.clone(),
                        ));
                    }
                    Listener::Tcp(listener) => {
                        let listener = TcpListener::from_std(listener)?;
                        runtime.spawn(serve(
                            async move || Ok(listener.accept().await?.0),
                            pages.clone(),
                        ));
                    }
                }
            }
        }
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            // An error means that the server was dropped, which ends it as well.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("web".to_owned()).spawn(body)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A connection that may be closed for another.
#[derive(Debug)]
struct Place {
    task: AbortHandle,
    /// It has sent a whole request.
    has_asked: Arc<AtomicBool>,
}

/// The connections of a listener, the oldest first.
#[derive(Debug, Default)]
struct Places(VecDeque<Place>);

impl Places {
    /// Makes room for one more.
    fn make_room(&mut self) {
        self.0.retain(|place| !place.task.is_finished());
        while self.0.len() >= CONNECTIONS {
            let silent = self.0.iter().position(|place| !place.has_asked.load(Ordering::Relaxed));
            if let Some(place) = self.0.remove(silent.unwrap_or(0)) {
                place.task.abort();
            }
        }
    }
}

/// Serves all connections that `accept` returns.
async fn serve<S>(accept: impl AsyncFn() -> io::Result<S>, pages: Pages)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut places = Places::default();
    let mut is_failing = false;
    loop {
        match accept().await {
            Ok(stream) => {
                is_failing = false;
                places.make_room();
                let has_asked = Arc::new(AtomicBool::new(false));
                let task = tokio::spawn(converse(stream, pages.clone(), has_asked.clone()));
                places.0.push_back(Place { task: task.abort_handle(), has_asked });
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

/// Answers the requests of a connection.
async fn converse<S>(stream: S, pages: Pages, has_asked: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pages = TowerToHyperService::new(pages);
    let service = hyper::service::service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        pages.call(request.map(Body::new))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(HEAD_MAX)
        // A client that has said everything may close its direction.
        .half_close(true);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = sleep(LIFE) => {}
    }
    connection.as_mut().graceful_shutdown();
    // Its end is a client's affair.
    let _ = timeout(LAST_WORDS, connection).await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream};

    use axum::routing::{get, post};

    use super::*;

    fn server() -> (Server, SocketAddr) {
        let listener = StdTcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let length = async |body: bytes::Bytes| body.len().to_string();
        let pages = Pages::new().route("/", get(async || "here")).route("/length", post(length));
        (Server::start(vec![Listener::Tcp(listener)], pages).unwrap(), address)
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

//! The sockets of collectors. None of them is waited for.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use api::report;

/// The collectors of an exporter.
#[derive(Default)]
pub struct Collectors {
    all: Vec<Collector>,
    source: Option<IpAddr>,
    /// True if a socket was opened since the last call of [`Self::take_new`].
    has_new: bool,
}

/// A collector. Without a socket, the next datagram opens one.
struct Collector {
    address: SocketAddr,
    socket: Option<UdpSocket>,
    counts: report::Collector,
    /// True if the last datagram was refused, which has been logged.
    is_failing: bool,
}

impl Collectors {
    /// Serves these from now on; those that stay keep their sockets, unless the source address is another.
    pub fn follow(&mut self, addresses: &[SocketAddr], source: Option<IpAddr>) {
        let is_same_source = self.source == source;
        let mut before = std::mem::take(&mut self.all);
        self.source = source;
        self.all = addresses
            .iter()
            .map(|&address| {
                let known = before.iter().position(|known| known.address == address);
                let mut known =
                    known.map_or_else(|| Collector::new(address), |at| before.swap_remove(at));
                known.socket = known.socket.filter(|_| is_same_source);
                known
            })
            .collect();
    }

    /// Sends a datagram to each.
    pub fn send(&mut self, datagram: &[u8]) {
        for collector in &mut self.all {
            self.has_new |= collector.send(datagram, self.source);
        }
    }

    /// Opens sockets that are missing, so that those that read them have what they need first.
    pub fn open(&mut self) {
        for collector in &mut self.all {
            self.has_new |= collector.open(self.source).is_ok_and(|is_new| is_new);
        }
    }

    /// Returns true, once, if a socket was opened: a collector regards that as another exporter.
    pub fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.has_new)
    }

    /// Returns the counts.
    pub fn report(&self) -> Vec<report::Collector> {
        self.all.iter().map(|collector| collector.counts.clone()).collect()
    }
}

impl Collector {
    fn new(address: SocketAddr) -> Self {
        let counts = report::Collector { address: address.to_string(), ..Default::default() };
        Self { address, socket: None, counts, is_failing: false }
    }

    /// Returns true if it has opened a socket.
    fn open(&mut self, source: Option<IpAddr>) -> io::Result<bool> {
        if self.socket.is_some() {
            return Ok(false);
        }
        let any: IpAddr = match self.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((source.unwrap_or(any), 0))?;
        socket.set_nonblocking(true)?;
        socket.connect(self.address)?;
        self.socket = Some(socket);
        Ok(true)
    }

    /// Sends a datagram; returns true if a socket was opened for it.
    fn send(&mut self, datagram: &[u8], source: Option<IpAddr>) -> bool {
        let opened = self.open(source);
        let is_new = *opened.as_ref().unwrap_or(&false);
        let sent = opened.and_then(|_| match &self.socket {
            Some(socket) => socket.send(datagram),
            None => Err(ErrorKind::NotConnected.into()),
        });
        match sent {
            Ok(_) => {
                self.counts.datagrams += 1;
                self.counts.bytes += datagram.len() as u64;
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("collector {}: reached again", self.address);
                }
            }
            Err(error) => self.fail(&error),
        }
        is_new
    }

    fn fail(&mut self, error: &io::Error) {
        let has_no_room = matches!(error.kind(), ErrorKind::WouldBlock)
            || error.raw_os_error() == Some(nix::libc::ENOBUFS);
        if has_no_room {
            self.counts.dropped += 1;
            return;
        }
        self.counts.errors += 1;
        self.counts.last_error = Some(error.to_string());
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!("collector {}: {error}; datagrams for it are lost", self.address);
        }
        // Nothing listens there: the socket itself is sound.
        if error.kind() != ErrorKind::ConnectionRefused {
            self.socket = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> (UdpSocket, SocketAddr) {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn each_collector_has_each_datagram_and_a_lost_one_is_counted() {
        let ((one, first), (two, second)) = (listener(), listener());
        let mut collectors = Collectors::default();
        collectors.follow(&[first, second], None);
        collectors.open();
        assert!(collectors.take_new() && !collectors.take_new());
        collectors.send(b"hello");
        let mut bytes = [0; 9];
        for socket in [&one, &two] {
            assert_eq!(socket.recv(&mut bytes).unwrap(), 5);
        }
        drop(two);
        // The kernel reports with a later datagram that nobody listens.
        while collectors.report()[1].errors == 0 {
            collectors.send(b"again");
        }
        let [one, two] = &collectors.report()[..] else { panic!() };
        assert_eq!((one.errors, one.bytes), (0, 5 * one.datagrams));
        assert!(two.last_error.as_ref().unwrap().contains("refused"), "{two:?}");
        assert!(!collectors.take_new());
    }

    #[test]
    fn those_that_stay_keep_their_counts_and_sockets() {
        let ((_one, first), (_two, second)) = (listener(), listener());
        let mut collectors = Collectors::default();
        collectors.follow(&[first], None);
        collectors.send(b"hello");
        assert!(collectors.take_new());
        collectors.follow(&[second, first], None);
        collectors.send(b"hello");
        assert!(collectors.take_new());
        assert_eq!(collectors.report().iter().map(|of| of.datagrams).collect::<Vec<_>>(), [1, 2]);
        collectors.follow(&[first], "127.0.0.2".parse().ok());
        collectors.send(b"hello");
        assert!(collectors.take_new(), "another source address");
        collectors.follow(&[first], "192.0.2.1".parse().ok());
        collectors.send(b"hello");
        assert_eq!((collectors.report()[0].errors, collectors.report()[0].datagrams), (1, 3));
    }
}

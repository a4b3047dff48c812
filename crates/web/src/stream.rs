//! A response's body that is made while it is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Frame;
use tokio::sync::mpsc;

/// Returns a body of these pieces. An error closes the connection before the body is whole; the channel is closed when the
/// client is gone.
pub fn stream(pieces: mpsc::Receiver<io::Result<Bytes>>) -> Body {
    Body::new(Pieces(pieces))
}

struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

//! A stream whose reader must take something from time to time: who reads nothing keeps its place from others.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream on which a write fails if nothing is taken in time.
#[derive(Debug)]
pub struct Patient<S> {
    inner: S,
    patience: Duration,
    /// Ends the patience while a write waits.
    end: Pin<Box<Sleep>>,
    is_waiting: bool,
}

impl<S> Patient<S> {
    /// Bounds the writes of a stream; by [`Duration::MAX`] not at all.
    pub fn new(inner: S, patience: Duration) -> Self {
        Self { inner, patience, end: Box::pin(sleep(patience)), is_waiting: false }
    }

    /// The stream.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The result of an attempt to write.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.is_waiting = false;
            return result;
        }
        if !std::mem::replace(&mut self.is_waiting, true) {
            let end = Instant::now().checked_add(self.patience);
            end.into_iter().for_each(|end| self.end.as_mut().reset(end));
        }
        self.end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        pin!(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = pin!(&mut self.inner).poll_write(context, bytes);
        self.judge(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = pin!(&mut self.inner).poll_write_vectored(context, bytes);
        self.judge(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = pin!(&mut self.inner).poll_flush(context);
        self.judge(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_is_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, mut there) = tokio::io::duplex(8);
            let mut stream = Patient::new(here, Duration::from_millis(50));
            stream.write_all(b"12345678").await.unwrap();
            let error = stream.write_all(b"9").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            let mut taken = [0; 8];
            there.read_exact(&mut taken).await.unwrap();
            stream.write_all(b"9").await.unwrap();
        });
    }
}

//! Threads of sources, each with a runtime of its own in its network namespace.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;

use privileges::Role;

use super::{Error, socket};

/// Starts a thread in a namespace. `make` opens its resources there and returns the future to run
/// and the value to return, for which the caller waits. The future keeps to the role.
pub(crate) fn start<T, F, M>(
    name: &str,
    (netns, role): (Option<PathBuf>, Option<Role>),
    make: impl FnOnce() -> M + Send + 'static,
) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = ()>,
    M: Future<Output = Result<(F, T), Error>>,
{
    let (answer, answered) = mpsc::sync_channel(1);
    let body = move || {
        let ready =
            netns.map_or(Ok(()), |path| socket::enter_netns(&path)).and_then(|()| runtime());
        let runtime = match ready {
            Ok(runtime) => runtime,
            Err(error) => return drop(answer.send(Err(error))),
        };
        runtime.block_on(async move {
            match make().await {
                Ok((run, value)) => {
                    // The caller waits for the value.
                    let _ = answer.send(Ok(value));
                    role.into_iter().for_each(privileges::keep_to);
                    run.await;
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        });
    };
    let failed = |error| Error::Socket { what: format!("thread {name}"), error };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(failed)?;
    answered.recv().unwrap_or_else(|_| Err(failed(io::Error::other("ended at once"))))
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Error::Socket { what: "runtime of the thread".into(), error })
}

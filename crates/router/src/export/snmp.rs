//! The session with an SNMP agent, by AgentX. One that ends is opened again, later each time.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentx::pdu::HEADER;
use agentx::session::Objects as Asked;
use agentx::{Header, Oid, Pdu, Range, Request, Session, Step, Value, VarBind};
use anyhow::{Context, Result, bail};
use api::report;
use dataplane::lock::lock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::OwnerLink;
use super::mib::{Objects, SUBTREES, Silent};

/// Bounds of the time before a session is opened again.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Time limit for the master to take and to answer what opens a session, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time without a request after which the master is asked for a sign of life.
const IDLE: Duration = Duration::from_secs(60);

/// Most objects of an answer to GetBulk: a master asks for the rest again.
const BULK_MOST: usize = 512;

/// The task of a session; dropping this ends it.
pub struct Snmp {
    path: PathBuf,
    task: AbortHandle,
    report: Arc<Mutex<report::Snmp>>,
}

impl Snmp {
    /// Starts sessions with the master at this path.
    pub fn start(path: &std::path::Path, owner: Arc<OwnerLink>) -> Self {
        let report = report::Snmp {
            agentx: path.display().to_string(),
            state: "connecting".to_owned(),
            ..Default::default()
        };
        let report = Arc::new(Mutex::new(report));
        let agent =
            Agent { path: path.to_owned(), objects: Objects::new(owner), report: report.clone() };
        Self { path: path.to_owned(), task: tokio::spawn(agent.run()).abort_handle(), report }
    }

    /// Returns true if its master is at this path.
    pub fn is_at(&self, path: &std::path::Path) -> bool {
        self.path == path
    }

    /// Returns its state.
    pub fn report(&self) -> report::Snmp {
        lock(&self.report).clone()
    }
}

impl Drop for Snmp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Agent {
    path: PathBuf,
    objects: Objects,
    report: Arc<Mutex<report::Snmp>>,
}

impl Agent {
    async fn run(mut self) {
        let (mut wait, most) = BACKOFF;
        loop {
            let error = match self.converse().await {
                Ok(never) => match never {},
                Err(error) => format!("{error:#}"),
            };
            let was_ready = {
                let report = &mut *lock(&self.report);
                let before = std::mem::replace(&mut report.state, "connecting".to_owned());
                if report.last_error.as_ref() != Some(&error) {
                    tracing::warn!("snmp: {}: {error}; trying again", report.agentx);
                }
                report.last_error = Some(error);
                before == "ready"
            };
            wait = if was_ready { BACKOFF.0 } else { wait };
            sleep(wait).await;
            wait = (wait * 2).min(most);
        }
    }

    /// Has one session, which only ends by an error.
    async fn converse(&mut self) -> Result<std::convert::Infallible> {
        let connecting = timeout(PATIENCE, UnixStream::connect(&self.path)).await;
        let mut stream = connecting.context("it does not answer")?.context("no agent there")?;
        let subtrees = SUBTREES.map(Oid::new);
        let (mut session, first) = Session::open("Turnpike", &subtrees);
        write(&mut stream, &first).await?;
        let (mut buffer, mut is_asked) = (Vec::new(), false);
        loop {
            while let Some((header, pdu)) = take_pdu(&mut buffer)? {
                is_asked = false;
                match session.receive(&header, pdu)? {
                    Step::Send(bytes) => write(&mut stream, &bytes).await?,
                    Step::Ask(request) => {
                        lock(&self.report).requests += 1;
                        let answer = match self.answer(&request).await {
                            Ok(objects) => session.answer(&request, objects),
                            Err(Silent) => session.fail(&request),
                        };
                        write(&mut stream, &answer).await?;
                    }
                    Step::Ready => self.note_ready(),
                    Step::Nothing => {}
                }
            }
            let patience = if session.is_ready() && !is_asked { IDLE } else { PATIENCE };
            match timeout(patience, stream.read_buf(&mut buffer)).await {
                Ok(read) => {
                    if read? == 0 {
                        bail!("the agent has closed the connection");
                    }
                }
                Err(_) if session.is_ready() && !is_asked => {
                    is_asked = true;
                    write(&mut stream, &session.ping()).await?;
                }
                Err(_) => bail!("the agent does not answer"),
            }
        }
    }

    fn note_ready(&self) {
        let report = &mut *lock(&self.report);
        report.state = "ready".to_owned();
        report.sessions += 1;
        report.last_error = None;
        tracing::info!("snmp: {}: objects are registered", report.agentx);
    }

    async fn answer(&mut self, request: &Request) -> Result<Vec<VarBind>, Silent> {
        let mut found = Vec::new();
        match &request.objects {
            Asked::Get(names) => {
                for name in names {
                    found.push(self.objects.get(name).await?);
                }
            }
            Asked::Next(ranges) => {
                for range in ranges {
                    found.push(self.objects.next(range).await?);
                }
            }
            Asked::Bulk(singles, repetitions, ranges) => {
                let (first, others) = ranges.split_at(*singles);
                for range in first {
                    found.push(self.objects.next(range).await?);
                }
                self.repeat(others.to_vec(), *repetitions, &mut found).await?;
            }
        }
        Ok(found)
    }

    /// Adds the objects of several ranges, row by row.
    async fn repeat(
        &mut self,
        mut ranges: Vec<Range>,
        repetitions: usize,
        found: &mut Vec<VarBind>,
    ) -> Result<(), Silent> {
        for _ in 0..repetitions {
            if ranges.is_empty() || found.len() + ranges.len() > BULK_MOST {
                break;
            }
            let mut is_over = true;
            for range in &mut ranges {
                let object = self.objects.next(range).await?;
                is_over &= object.value == Value::EndOfMibView;
                (range.start, range.include) = (object.name.clone(), false);
                found.push(object);
            }
            if is_over {
                break;
            }
        }
        Ok(())
    }
}

/// Takes the first PDU of what was read, if it is whole.
fn take_pdu(buffer: &mut Vec<u8>) -> Result<Option<(Header, Pdu)>, agentx::Error> {
    let Some(head) = buffer.first_chunk::<HEADER>() else { return Ok(None) };
    let header = Header::read(head)?;
    let end = HEADER + header.len;
    let Some(payload) = buffer.get(HEADER..end) else { return Ok(None) };
    let pdu = Pdu::read(&header, payload)?;
    buffer.drain(..end);
    Ok(Some((header, pdu)))
}

async fn write(stream: &mut UnixStream, bytes: &[u8]) -> Result<()> {
    let written = timeout(PATIENCE, stream.write_all(bytes)).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).context("cannot write")
}

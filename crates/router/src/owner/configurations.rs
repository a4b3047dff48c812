//! Changes to another configuration: requests of clients, the change to be confirmed, the history.
//!
//! ```text
//!   apply, rollback, not confirmed --> prepare (a thread) --> finish --> apply.rs --> history
//!   plan, history N --diff --------------^                      |
//!                                                               +--> the answer
//! ```
//!
//! A change is prepared beside the owner's work, against the configuration of that moment. If another
//! change was made meanwhile it is prepared again.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::configuration::{ApplyRequest, PlanRequest, RollbackRequest, SaveRequest};
use api::report::{self, Applied, Change, ChangePlan, HistoryEntry, PlannedChange, RouteChanges};
use api::{Answer, Request, Show};
use control::config::{Changes, Config, Diff, Effect, Route, Setting};
use dataplane::lock::lock;
use dataplane::port::PortId;
use dataplane::words::count;
use tokio::sync::{mpsc, oneshot};

use super::super::archive::{Archive, Entry, State};
use super::super::ports::Known;
use super::super::prepare::{Preparation, Prepared, Wanted};
use super::super::pulse::Pulse;
use super::super::{graphs, handlers};
use super::handlers::Edit;
use super::history::{History, Origin};
use super::initial::StaticRoutes;
use super::{Owner, found_vlans, questions};

/// Routes of each kind in a plan, unless all are requested.
const ROUTES_SHOWN: usize = 10;

/// Changes by handlers that wait.
const EDITS_MOST: usize = 1024;

/// Purpose of a prepared change.
enum Purpose {
    /// To be shown, all routes or the first some.
    Show { all: bool },
    /// To be made.
    Make { origin: Origin, confirm: Option<Duration> },
    /// To be made for the handler of this name, beside the history.
    Handler(String),
    /// To be made for VLAN devices of the kernel, beside the history.
    VlanDevices,
}

impl Purpose {
    fn is_made(&self) -> bool {
        !matches!(self, Self::Show { .. })
    }

    /// Returns true if the history will have it.
    fn is_change(&self) -> bool {
        matches!(self, Self::Make { .. })
    }
}

/// The client that waits for the answer; `None` if the router itself rolls back.
type Asker = Option<oneshot::Sender<Answer>>;

/// A prepared change, or the reason for which it is refused.
pub struct Job {
    purpose: Purpose,
    asker: Asker,
    wanted: Wanted,
    outcome: Result<Prepared>,
}

/// A configuration that is to be confirmed.
struct Pending {
    number: u64,
    deadline: Instant,
    /// The configuration to be restored.
    back: Arc<Config>,
    /// It was not confirmed, and the way back is being prepared.
    expired: bool,
}

impl Pending {
    fn seconds(&self) -> u64 {
        self.deadline.saturating_duration_since(Instant::now()).as_secs_f64().ceil() as u64
    }
}

/// What the router knows of the file that it was started with. Clones are of one: it is also written beside the owner's
/// work.
#[derive(Clone)]
struct StartFile(Arc<Mutex<Seen>>);

struct Seen {
    /// Its text, as it was last read or written; `None` if it was refused.
    text: Option<Arc<str>>,
    /// The reason for which the router has the last good configuration in its place.
    refused: Option<String>,
}

impl StartFile {
    /// The file has this text, which the router takes.
    fn has(&self, text: Arc<str>) {
        *lock(&self.0) = Seen { text: Some(text), refused: None };
    }

    /// A client has applied another configuration.
    fn replaced(&self) {
        lock(&self.0).refused = None;
    }
}

/// The configuration of a running router, and the state of changes to it.
pub struct Configurations {
    pub(super) current: Arc<Config>,
    /// The file of the start.
    start: StartFile,
    /// Its routes in the RIB.
    pub(super) routes: StaticRoutes,
    /// The ports' data.
    pub(super) known: BTreeMap<PortId, Known>,
    preparation: Preparation,
    history: History,
    pending: Option<Pending>,
    /// Changes in preparation that are to be made.
    making: Cell<usize>,
    /// Those of them that the history will have.
    changing: Cell<usize>,
    /// Changes by handlers, each made when no other is in preparation: one that takes long to prepare would be prepared
    /// again and again.
    edits: VecDeque<(Edit, String, oneshot::Sender<Answer>)>,
    done: mpsc::UnboundedSender<Job>,
    jobs: mpsc::UnboundedReceiver<Job>,
}

impl Configurations {
    /// Of a router that starts with a configuration, whose routes are in the RIB: that of the file, or the last good one
    /// with the reason for which the file was refused.
    pub fn new(
        (config, refused): (Config, Option<String>),
        archive: Option<(Archive, State)>,
        routes: StaticRoutes,
        known: BTreeMap<PortId, Known>,
        preparation: Preparation,
    ) -> Self {
        let (done, jobs) = mpsc::unbounded_channel();
        let ports = count(config.ports.len(), "port");
        let summary = format!("{ports}, {}", count(config.routes.len(), "route"));
        // Messages use the whole path, as clients do.
        let file = std::path::absolute(&config.file).unwrap_or_else(|_| config.file.clone());
        let origin = if refused.is_some() { Origin::LastGood } else { Origin::Start };
        let history = History::new(archive, (file, config.text.clone()), origin, summary);
        let text = refused.is_none().then(|| config.text.clone());
        let start = StartFile(Arc::new(Mutex::new(Seen { text, refused })));
        let current = Arc::new(config);
        let (pending, edits) = (None, VecDeque::new());
        let (making, changing) = (Cell::new(0), Cell::new(0));
        Self {
            current,
            start,
            routes,
            known,
            preparation,
            history,
            pending,
            making,
            changing,
            edits,
            done,
            jobs,
        }
    }

    /// The router is ready with the configuration of its start.
    pub(super) fn ready(&mut self) {
        self.history.ready();
        // One that was applied meanwhile may wait for its confirmation.
        if self.pending.is_none() {
            self.history.keep_as_good();
        }
    }

    /// Returns true if the router has the last good configuration, as the file of the start was refused.
    pub(super) fn is_refused(&self) -> bool {
        lock(&self.start.0).refused.is_some()
    }

    /// The router takes a configuration for this reason, though it may be the one that it has.
    fn takes(&self, config: &Config, origin: Origin) {
        let of_start = origin == Origin::Reload || self.preparation.is_start_file(&config.file);
        match origin {
            Origin::Reload | Origin::Apply if of_start => self.start.has(config.text.clone()),
            _ => self.start.replaced(),
        }
    }

    /// Returns the place where changes are prepared.
    pub(super) fn preparation(&self) -> Preparation {
        self.preparation.clone()
    }

    /// The next change that has been prepared.
    pub(super) async fn prepared(&mut self) -> Option<Job> {
        self.jobs.recv().await
    }

    /// Prepares a change beside the owner's work. It is refused there if a forwarder is stuck, since the
    /// owner cannot work while it waits for forwarders.
    fn prepare(&self, pulse: Pulse, wanted: Wanted, purpose: Purpose, asker: Asker) {
        let (preparation, base, done) =
            (self.preparation.clone(), self.current.clone(), self.done.clone());
        let known = self.known.clone();
        self.making.set(self.making.get() + usize::from(purpose.is_made()));
        self.changing.set(self.changing.get() + usize::from(purpose.is_change()));
        tokio::task::spawn_blocking(move || {
            let graphs = purpose.is_made();
            let alive = || if graphs { pulse.wait() } else { Ok(()) };
            let prepare = || preparation.prepare(base, &known, wanted.clone(), graphs);
            // A defect there is an answer, too: nothing of the router has been touched.
            let prepared = catch_unwind(AssertUnwindSafe(prepare)).unwrap_or_else(|_| {
                bail!("a panic over it: a defect, please report what the log says")
            });
            let outcome = prepared.and_then(|prepared| alive().map(|()| prepared));
            // The owner may have ended.
            let _ = done.send(Job { purpose, asker, wanted, outcome });
        });
    }

    /// Returns true if a change is in preparation that is to be made, or one of a handler waits.
    pub(super) fn are_in_preparation(&self) -> bool {
        self.making.get() > 0 || !self.edits.is_empty()
    }

    /// True if a change is being prepared or made.
    pub(super) fn are_changing(&self) -> bool {
        self.changing.get() > 0
    }

    /// The number of the current one.
    pub(super) fn number(&self) -> u64 {
        self.history.current()
    }

    /// True if the current one waits for its confirmation.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.pending.is_some()
    }

    /// Checks that no configuration waits to be confirmed.
    ///
    /// # Errors
    /// One does; the message names the remedies.
    fn nothing_pending(&self, what: &str) -> Result<()> {
        let Some(pending) = &self.pending else { return Ok(()) };
        bail!(
            "{what}: configuration {} is to be confirmed within {} s; turnpike confirm keeps it, turnpike \
             rollback takes it back",
            pending.number,
            pending.seconds()
        )
    }

    fn past(&self, number: u64) -> Result<Wanted> {
        let entry = self.history.get(number)?;
        Ok(Wanted::Past(entry.file.clone(), entry.text.clone()))
    }

    /// Returns the change that a request is for, if it is about configurations; requests that need no preparation come
    /// back.
    fn job(&self, request: Request) -> Result<Result<(Wanted, Purpose), Request>> {
        let confirm = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        Ok(Ok(match request {
            Request::Plan(PlanRequest { file, text, all }) => {
                (text_of(file, text)?, Purpose::Show { all })
            }
            Request::Show(Show::Difference { number, all }) => {
                (self.past(number)?, Purpose::Show { all })
            }
            Request::Apply(ApplyRequest { file, text, confirm_s }) => {
                self.nothing_pending("apply")?;
                let purpose = Purpose::Make { origin: Origin::Apply, confirm: confirm(confirm_s) };
                (text_of(file, text)?, purpose)
            }
            Request::Rollback(RollbackRequest { to, confirm_s }) => {
                let previous = match (to, &self.pending) {
                    (Some(number), None) => number,
                    (Some(_), Some(_)) => {
                        return Err(self.nothing_pending("rollback").err().context("")?);
                    }
                    (None, _) => self.history.previous()?.number,
                };
                let wanted = match &self.pending {
                    Some(pending) => Wanted::Config(pending.back.clone()),
                    None => self.past(previous)?,
                };
                let (origin, confirm) = (Origin::Rollback(previous), confirm(confirm_s));
                (wanted, Purpose::Make { origin, confirm })
            }
            other => return Ok(Err(other)),
        }))
    }

    /// Keeps what was applied on condition.
    pub(super) fn confirm(&mut self) -> Result<Change> {
        let pending = self.pending.take_if(|pending| !pending.expired).context(
            "confirm: no configuration awaits confirmation; see turnpike history for what was applied",
        )?;
        tracing::info!("configuration {}: confirmed", pending.number);
        self.history.keep_as_good();
        Ok(Change { change: format!("configuration {} confirmed", pending.number), note: None })
    }

    pub(super) fn report(&self) -> Vec<HistoryEntry> {
        let entry = |entry: &Entry| {
            let pending = self.pending.as_ref().filter(|pending| pending.number == entry.number);
            let current = entry.number == self.history.current();
            let state = match (pending, current) {
                (Some(_), _) => Some("waiting"),
                (None, true) => Some("current"),
                (None, false) => None,
            };
            HistoryEntry {
                number: entry.number,
                time_s: entry
                    .time
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_secs(),
                file: entry.file.display().to_string(),
                origin: entry.origin.to_string(),
                summary: entry.summary.clone(),
                state: state.map(str::to_owned),
                confirm_s: pending.map(Pending::seconds),
            }
        };
        self.history.entries().map(entry).collect()
    }

    pub(super) fn configuration(&self, number: u64) -> Result<report::Configuration> {
        let entry = self.history.get(number)?;
        let (file, text) = (entry.file.display().to_string(), entry.text.to_string());
        Ok(report::Configuration { number, file, text })
    }
}

fn text_of(file: PathBuf, text: String) -> Result<Wanted> {
    if !file.is_absolute() {
        bail!(
            "file {}: not an absolute path, and the router is in another directory",
            file.display()
        );
    }
    Ok(Wanted::Text(file, text.into()))
}

impl Owner {
    /// Begins to serve a request about configurations; other requests come back.
    pub(super) fn begin(
        &mut self,
        request: Request,
        asker: oneshot::Sender<Answer>,
    ) -> Option<(Request, oneshot::Sender<Answer>)> {
        match self.configurations.job(request) {
            Ok(Ok((wanted, purpose))) => {
                self.configurations.prepare(self.pulse(), wanted, purpose, Some(asker));
            }
            Ok(Err(request)) => return Some((request, asker)),
            Err(error) => reply(Some(asker), Err(error)),
        }
        None
    }

    /// Writes the configuration to the file of the start, beside the owner's work.
    pub(super) fn save(
        &self,
        SaveRequest { number, force }: SaveRequest,
        to: oneshot::Sender<Answer>,
    ) {
        let configurations = &self.configurations;
        let current = configurations.history.current();
        let checked = configurations.nothing_pending("save").and_then(|()| {
            let wanted = number.unwrap_or(current);
            ensure!(
                wanted == current,
                "save: the router has configuration {current}, not {wanted}"
            );
            Ok(())
        });
        if let Err(error) = checked {
            return reply(Some(to), Err(error));
        }
        let start = configurations.start.clone();
        let known = lock(&start.0).text.clone();
        let (preparation, config) = (configurations.preparation(), configurations.current.clone());
        tokio::task::spawn_blocking(move || {
            let is_known = (!force).then_some(|text: &[u8]| {
                known.as_ref().is_some_and(|known| known.as_bytes() == text)
            });
            let saved = preparation.save(&config, is_known).and_then(|(file, written)| {
                start.has(config.text.clone());
                let file = file.display().to_string();
                questions::json(&report::Saved { number: current, file, written })
            });
            reply(Some(to), saved.context("save"));
        });
    }

    /// Makes the change of a handler when its turn comes.
    pub(super) fn make_edit(&mut self, edit: Edit, handler: String, to: oneshot::Sender<Answer>) {
        if self.configurations.edits.len() >= EDITS_MOST {
            let why = Err("too many changes wait; try again".to_owned());
            return reply(Some(to), questions::json(&handlers::written(&handler, why)));
        }
        self.configurations.edits.push_back((edit, handler, to));
        self.next_edit();
    }

    /// Prepares the next change of a handler, if no other change is in preparation.
    fn next_edit(&mut self) {
        if self.configurations.making.get() > 0 {
            return;
        }
        let Some((edit, handler, to)) = self.configurations.edits.pop_front() else { return };
        let (wanted, purpose) = (Wanted::Edit(Arc::new(edit)), Purpose::Handler(handler));
        self.configurations.prepare(self.pulse(), wanted, purpose, Some(to));
    }

    /// Shows or makes a change that has been prepared.
    pub(super) async fn finish(&mut self, job: Job) {
        let making = &self.configurations.making;
        making.set(making.get() - usize::from(job.purpose.is_made()));
        let is_change = usize::from(job.purpose.is_change());
        self.finish_job(job).await;
        let changing = &self.configurations.changing;
        changing.set(changing.get() - is_change);
        self.next_edit();
    }

    /// Prepares a change that the history does not have, for VLAN devices of the kernel.
    pub(super) fn prepare_beside_history(&self, wanted: Wanted) {
        self.configurations.prepare(self.pulse(), wanted, Purpose::VlanDevices, None);
    }

    async fn finish_job(&mut self, job: Job) {
        let Job { purpose, asker, wanted, outcome } = job;
        let returns = matches!(purpose, Purpose::Make { origin: Origin::NotConfirmed(_), .. });
        if returns && self.configurations.pending.is_none() {
            // A client has rolled back meanwhile.
            return;
        }
        let prepared = match outcome {
            Ok(prepared) => prepared,
            Err(error) => {
                say_failure(&purpose, &error);
                if matches!(purpose, Purpose::VlanDevices) {
                    self.has_followed_vlan_devices(false);
                }
                self.give_back_devices(&self.configurations.current);
                return reply(asker, refused(&purpose, error));
            }
        };
        if !Arc::ptr_eq(&prepared.base, &self.configurations.current) {
            return self.configurations.prepare(self.pulse(), wanted, purpose, asker);
        }
        let answer = match &purpose {
            Purpose::Handler(handler) => {
                let made = self.make_beside_history(prepared).await;
                let done = made.map_err(|error| format!("{error:#}"));
                questions::json(&handlers::written(handler, done))
            }
            Purpose::VlanDevices => {
                let (diff, config) = (prepared.diff.clone(), prepared.config.clone());
                let made = self.make_beside_history(prepared).await;
                if made.is_ok() {
                    found_vlans::say_changes(&diff, &config);
                }
                self.has_followed_vlan_devices(made.is_ok());
                made.map(|()| serde_json::Value::Null)
            }
            Purpose::Show { all } => questions::json(&plan(&prepared, *all)),
            Purpose::Make { origin, confirm } => {
                let made = self.make(prepared, *origin, *confirm).await;
                made.and_then(|applied| questions::json(&applied))
            }
        };
        if let Err(error) = &answer {
            say_failure(&purpose, error);
        }
        if returns {
            self.configurations.pending = None;
        }
        if purpose.is_made() {
            if !matches!(purpose, Purpose::VlanDevices) {
                self.found_vlans.look_again();
            }
            self.publish_metrics();
            self.tell_captures();
        }
        reply(asker, answer);
    }

    /// Makes a change that the history does not have.
    async fn make_beside_history(&mut self, prepared: Prepared) -> Result<()> {
        refuse_fixed(&prepared.diff)?;
        if prepared.diff.is_empty() {
            return Ok(());
        }
        let config = prepared.config.clone();
        self.carry_out(prepared).await?;
        self.configurations.known = self.known();
        self.configurations.current = config;
        Ok(())
    }

    async fn make(
        &mut self,
        prepared: Prepared,
        origin: Origin,
        confirm: Option<Duration>,
    ) -> Result<Applied> {
        // Another one may have been made on condition meanwhile.
        if matches!(origin, Origin::Apply | Origin::Reload) {
            self.configurations.nothing_pending("apply")?;
        }
        let (base, config) = (prepared.base.clone(), prepared.config.clone());
        refuse_fixed(&prepared.diff)?;
        let summary = summary(&prepared.diff);
        if prepared.diff.is_empty() && base.text == config.text {
            let number = self.configurations.history.current();
            self.configurations.takes(&config, origin);
            if origin == Origin::Reload {
                tracing::info!("{origin}: no change");
            }
            return Ok(Applied { number, summary, confirm_s: None, pause_us: None });
        }
        let (file, text) = (config.file.clone(), config.text.clone());
        let graph = prepared.diff.graph;
        let pause = self.carry_out(prepared).await?;
        if graph {
            graphs::say_policies(&config);
        }
        let known = self.known();
        let configurations = &mut self.configurations;
        configurations.known = known;
        configurations.takes(&config, origin);
        configurations.current = config;
        let number = configurations.history.add(file.clone(), text, origin, summary.clone());
        let confirm_s = confirm.map(|time| time.as_secs());
        configurations.pending = confirm.map(|time| Pending {
            number,
            deadline: Instant::now() + time,
            back: base,
            expired: false,
        });
        if confirm.is_none() {
            configurations.history.keep_as_good();
        }
        self.warn_of_silence();
        let condition =
            confirm_s.map_or_else(String::new, |s| format!("; to be confirmed within {s} s"));
        tracing::info!(
            "configuration {number} ({origin}, {}): {summary}{condition}",
            file.display()
        );
        let pause_us = pause.map(|pause| pause.as_secs_f64() * 1e6);
        Ok(Applied { number, summary, confirm_s, pause_us })
    }

    /// Applies the file that the router was started with, as it is now; the log has the result.
    pub(super) fn reload(&mut self) {
        let (origin, configurations) = (Origin::Reload, &self.configurations);
        tracing::info!("{origin}: applying the configuration file");
        let purpose = Purpose::Make { origin, confirm: None };
        match configurations.nothing_pending("apply") {
            Ok(()) => configurations.prepare(self.pulse(), Wanted::File, purpose, None),
            Err(error) => say_failure(&purpose, &error),
        }
    }

    /// Goes back if what was applied on condition was not confirmed in time.
    pub(super) fn watch_confirmation(&mut self) {
        let late = |p: &&mut Pending| !p.expired && p.deadline <= Instant::now();
        let Some(pending) = self.configurations.pending.as_mut().filter(late) else { return };
        pending.expired = true;
        let (number, back) = (pending.number, pending.back.clone());
        tracing::warn!(
            "configuration {number}: not confirmed in time, going back to the one before"
        );
        let purpose = Purpose::Make { origin: Origin::NotConfirmed(number), confirm: None };
        self.configurations.prepare(self.pulse(), Wanted::Config(back), purpose, None);
    }

    /// The pulse of the forwarders that run.
    pub(super) fn pulse(&self) -> Pulse {
        Pulse::new(self.forwarding.ledger.watched())
    }
}

fn reply(asker: Asker, answer: Result<serde_json::Value>) {
    if let Some(asker) = asker {
        // The client may have disconnected.
        let _ = asker.send(answer.into());
    }
}

/// The answer to one whose change cannot be prepared.
fn refused(purpose: &Purpose, error: anyhow::Error) -> Result<serde_json::Value> {
    match purpose {
        Purpose::Handler(handler) => {
            questions::json(&handlers::written(handler, Err(format!("{error:#}"))))
        }
        _ => Err(error),
    }
}

/// Logs a failed change, unless it was only to be shown.
fn say_failure(purpose: &Purpose, error: &anyhow::Error) {
    match purpose {
        // The caller is told.
        Purpose::Show { .. } | Purpose::Handler(_) => {}
        Purpose::VlanDevices => {
            tracing::error!(
                "kernel: VLAN devices are not followed, another attempt follows: {error:#}"
            );
        }
        Purpose::Make { origin: origin @ Origin::NotConfirmed(_), .. } => {
            tracing::error!("{origin}, but the one before cannot be restored: {error:#}");
        }
        Purpose::Make { origin: origin @ Origin::Reload, .. } => {
            tracing::error!("{origin}: refused, the router goes on as it is: {error:#}");
        }
        Purpose::Make { origin, .. } => tracing::warn!("{origin}: refused: {error:#}"),
    }
}

fn refuse_fixed(diff: &Diff) -> Result<()> {
    let all: Vec<_> = diff.fixed().map(in_parentheses).collect();
    if all.is_empty() {
        return Ok(());
    }
    bail!(
        "nothing was changed, because only a restart can change: {}; restart the router with this file, or \
         leave these as they are",
        all.join(", ")
    )
}

/// A setting, and the reason for which only a restart changes it.
fn in_parentheses(setting: &Setting) -> String {
    let why = setting.restart_because().unwrap_or_default();
    format!("{} ({why})", setting.what)
}

/// Describes the numbers of added, removed and changed objects.
fn counted<T>(what: &str, changes: &Changes<T>) -> impl Iterator<Item = String> {
    let all = [
        (changes.added.len(), "added"),
        (changes.removed.len(), "removed"),
        (changes.changed.len(), "changed"),
    ];
    let what = what.to_owned();
    let some = all.into_iter().filter(|(number, _)| *number > 0);
    some.map(move |(number, done)| format!("{} {done}", count(number, &what)))
}

/// Summarizes a change.
fn summary(diff: &Diff) -> String {
    let mut parts = Vec::new();
    parts.extend(counted("port", &diff.ports));
    parts.extend(counted("route", &diff.routes));
    if diff.graph {
        parts.push("graph".to_owned());
    }
    let others = diff.stated().filter(|s| s.effect != Effect::Graph && !diff.is_of_port(s)).count();
    if others > 0 {
        parts.push(count(others, "setting"));
    }
    if parts.is_empty() { "no change".to_owned() } else { parts.join(", ") }
}

fn plan(prepared: &Prepared, all: bool) -> ChangePlan {
    let Prepared { config, diff, .. } = prepared;
    let Changes { added, removed, changed } = &diff.routes;
    let shown = if all { usize::MAX } else { ROUTES_SHOWN };
    let route = |from: Option<&Route>, to: Option<&Route>| {
        let route = to.or(from);
        let metric = route.map_or(0, |route| route.metric);
        let metric = if metric == 0 { String::new() } else { format!(" metric {metric}") };
        let prefix = route.map(|route| route.prefix.to_string()).unwrap_or_default();
        let describe = |route: &Route| diff.describe(route);
        PlannedChange {
            what: format!("route {prefix}{metric}"),
            from: from.map(describe),
            to: to.map(describe),
            live: true,
            reopens: false,
            because: None,
        }
    };
    let mut changes: Vec<PlannedChange> = diff
        .stated()
        .cloned()
        .map(|setting| PlannedChange {
            reopens: diff.reopens(&setting),
            live: setting.is_live(),
            because: setting.restart_because().map(str::to_owned),
            what: setting.what,
            from: setting.from,
            to: setting.to,
        })
        .collect();
    changes.extend(removed.iter().take(shown).map(|gone| route(Some(gone), None)));
    changes.extend(changed.iter().take(shown).map(|(from, to)| route(Some(from), Some(to))));
    changes.extend(added.iter().take(shown).map(|new| route(None, Some(new))));
    let routes =
        RouteChanges { added: added.len(), removed: removed.len(), changed: changed.len() };
    let restart = diff.fixed().next().is_some();
    ChangePlan { file: config.file.display().to_string(), changes, routes, restart }
}

//! Scripts of the configuration (`Script`, `DriverManager`): a task each, in the API's thread.
//!
//! ```text
//!   element with a script --> task: click::script::Machine -- HandlerCall --> API's channel --> owner
//!   owner: handlers run, step, goto -- Order --> task             <------- answer, one at a time --+
//! ```
//!
//! A script reads and writes handlers like a client of a control socket. It has one call to the owner under way, pauses
//! after each [`CALLS`] of them, and one that jumps too often without waiting is stopped: so none delays the router. The
//! owner never waits for a script. An order to one that is being executed is refused, except steps, which it takes when
//! it next waits; so scripts that run each other do not wait for each other.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::report::HandlerAnswer;
use api::{Answer, HandlerCall, Request};
use click::script::{CLASSES, Call, End, Kind, Machine, Need, Script, compute};
use control::config::Element;
use dataplane::lock::lock;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::handlers::{said, status};
use super::server::{Question, audit};

/// Calls to the owner after which a script pauses, and for how long.
const CALLS: u32 = 32;
const PAUSE: Duration = Duration::from_millis(4);

/// Longest text in the log, in bytes.
const LOGGED_MOST: usize = 4096;

/// The value of a script's `run`, or the reason why there is none.
type Value = Result<String, String>;

/// What a script is told.
enum Order {
    /// Goes behind so many blocking instructions.
    Step(u32),
    /// Goes on at a label.
    GoTo(String),
    /// Begins, with arguments.
    Run(String),
}

/// The scripts that run.
#[derive(Default)]
pub struct Scripts(Vec<Running>);

struct Running {
    element: Element,
    kind: Kind,
    orders: mpsc::Sender<(Order, oneshot::Sender<Value>)>,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// What a script's task and the owner both have.
#[derive(Default)]
struct Shared {
    /// It is being executed, or has an order.
    is_busy: AtomicBool,
    /// It has ended and ends the router.
    is_over: AtomicBool,
    /// Steps while it was busy.
    steps: AtomicU32,
    /// The variables that handlers have.
    exported: Mutex<Vec<(String, String)>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripts {
    /// Runs the scripts of these elements from now on; one that stays as it is goes on.
    pub fn serve(
        &mut self,
        elements: &[Element],
        (runtime, questions): (&Handle, &mpsc::Sender<Question>),
    ) {
        let is_same = |one: &Element, other: &Element| {
            (&one.name, &one.class, &one.config) == (&other.name, &other.class, &other.config)
        };
        let scripts =
            || elements.iter().filter(|element| CLASSES.contains(&element.class.as_str()));
        self.0.retain(|running| scripts().any(|element| is_same(element, &running.element)));
        for element in scripts() {
            if self.0.iter().any(|running| is_same(element, &running.element)) {
                continue;
            }
            match Script::parse(&element.class, &element.config) {
                Ok(script) => self.0.push(begin(element, script, (runtime, questions))),
                // Checked with the configuration.
                Err(error) => tracing::error!("script \"{}\": {error}", element.name),
            }
        }
    }

    /// The value of a variable that a script exports.
    pub fn exported(&self, element: &str, name: &str) -> Option<String> {
        let running = self.0.iter().find(|running| running.element.name == element)?;
        let exported = lock(&running.shared.exported);
        exported.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    /// Gives a handler of a script its value: its answer comes later.
    ///
    /// # Errors
    /// There is no such script or handler now.
    pub fn call(
        &self,
        element: &str,
        handler: &str,
        text: &str,
    ) -> Result<oneshot::Receiver<Value>, String> {
        let running = self.0.iter().find(|running| running.element.name == element);
        let running = running.ok_or_else(|| format!("script \"{element}\" does not run"))?;
        let text = text.trim();
        let order = match handler {
            "run" => Order::Run(text.to_owned()),
            "goto" => Order::GoTo(text.to_owned()),
            _ if text.is_empty() => Order::Step(1),
            _ => Order::Step(text.parse().map_err(|_| "syntax error: expected a number of steps")?),
        };
        running.order(order)
    }

    /// Asks a `DriverManager` in place of ending the router; returns false if there is none, or it has ended.
    pub fn intercepts_stop(&self) -> bool {
        let mut drivers = self.0.iter().filter(|running| running.kind == Kind::Driver);
        drivers.any(|driver| {
            !driver.shared.is_over.load(Ordering::Relaxed) && driver.order(Order::Step(1)).is_ok()
        })
    }
}

impl Running {
    fn order(&self, order: Order) -> Result<oneshot::Receiver<Value>, String> {
        let (to, answer) = oneshot::channel();
        if self.shared.is_busy.swap(true, Ordering::AcqRel) {
            let Order::Step(count) = order else {
                return Err("the script is being executed; try again".to_owned());
            };
            self.shared.steps.fetch_add(count, Ordering::Relaxed);
            let _ = to.send(Ok(String::new()));
            return Ok(answer);
        }
        let sent = self.orders.try_send((order, to));
        sent.map_err(|_| "the script has ended".to_owned()).map(|()| answer)
    }
}

fn begin(
    element: &Element,
    script: Script,
    (runtime, questions): (&Handle, &mpsc::Sender<Question>),
) -> Running {
    let (orders, taken) = mpsc::channel(1);
    let (kind, shared) = (script.kind(), Arc::new(Shared::default()));
    shared.is_busy.store(true, Ordering::Release);
    let task = Task {
        name: element.name.clone(),
        kind,
        machine: Machine::new(Arc::new(script)),
        orders: taken,
        questions: questions.clone(),
        shared: shared.clone(),
        asker: None,
        calls: 0,
    };
    let task = runtime.spawn(task.run()).abort_handle();
    Running { element: element.clone(), kind, orders, shared, task }
}

/// A script in execution.
struct Task {
    name: String,
    kind: Kind,
    machine: Machine,
    orders: mpsc::Receiver<(Order, oneshot::Sender<Value>)>,
    questions: mpsc::Sender<Question>,
    shared: Arc<Shared>,
    /// Who waits for it to block or to end.
    asker: Option<oneshot::Sender<Value>>,
    calls: u32,
}

impl Task {
    async fn run(mut self) {
        loop {
            let goes_on = match self.machine.next_need() {
                Need::Read(call) => {
                    let value = self.read(call).await;
                    self.machine.answer(value);
                    true
                }
                Need::Write(call) => {
                    let is_done = self.write(call).await;
                    self.machine.written(is_done);
                    true
                }
                Need::Print { text, file } => {
                    self.print(text, file).await;
                    true
                }
                Need::Complain(text) => {
                    tracing::warn!("script \"{}\": {text}", self.name);
                    true
                }
                Need::Wait(time) => self.wait(Some(time)).await,
                Need::Pause => self.wait(None).await,
                Need::Done(end) => self.end(end).await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Waits for an order, or for a time. Returns false if no order can come any more.
    async fn wait(&mut self, time: Option<Duration>) -> bool {
        let steps = self.shared.steps.swap(0, Ordering::Relaxed);
        if steps > 0 {
            self.machine.step(steps);
            return true;
        }
        self.rest(Ok(String::new()));
        let order = match time {
            None => self.orders.recv().await,
            Some(time) => tokio::select! {
                order = self.orders.recv() => order,
                () = sleep(time) => {
                    if !self.shared.is_busy.swap(true, Ordering::AcqRel) {
                        self.machine.time_is_over();
                        return true;
                    }
                    // An order came at the same time.
                    self.orders.recv().await
                }
            },
        };
        self.take(order)
    }

    /// Others may give orders, and see the variables, from now on.
    fn rest(&mut self, value: Value) {
        let exported = self.machine.exported();
        let exported = exported.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        *lock(&self.shared.exported) = exported;
        self.shared.is_busy.store(false, Ordering::Release);
        if let Some(asker) = self.asker.take() {
            // The client may have disconnected.
            let _ = asker.send(value);
        }
    }

    fn take(&mut self, order: Option<(Order, oneshot::Sender<Value>)>) -> bool {
        let Some((order, asker)) = order else { return false };
        self.asker = Some(asker);
        match order {
            Order::Step(count) => self.machine.step(count),
            Order::Run(arguments) => self.machine.run(&arguments),
            Order::GoTo(label) => {
                if let Err(why) = self.machine.go_to(&label)
                    && let Some(asker) = self.asker.take()
                {
                    let _ = asker.send(Err(why));
                }
            }
        }
        true
    }

    /// The script has ended; it can be run again.
    async fn end(&mut self, end: End) -> bool {
        let value = match end {
            End::End => Ok(String::new()),
            End::Return(value) => Ok(value),
            End::Error(why) => {
                tracing::error!(
                    "script \"{}\": {}",
                    self.name,
                    if why.is_empty() { "error" } else { &why }
                );
                Err(why)
            }
            End::Stop => {
                self.stop().await;
                Ok(String::new())
            }
        };
        self.shared.steps.store(0, Ordering::Relaxed);
        self.rest(value);
        loop {
            let order = self.orders.recv().await;
            // There is nothing to step over.
            if let Some((Order::Step(_), asker)) = order {
                self.shared.is_busy.store(false, Ordering::Release);
                let _ = asker.send(Ok(String::new()));
                continue;
            }
            return self.take(order);
        }
    }

    /// Ends the router, or asks the driver for it.
    async fn stop(&mut self) {
        if self.kind == Kind::Driver {
            self.shared.is_over.store(true, Ordering::Relaxed);
        }
        tracing::info!("script \"{}\" stops the router", self.name);
        let call = Call { handler: "stop".to_owned(), argument: String::new() };
        self.write(call).await;
    }

    async fn print(&self, text: String, file: Option<(String, bool)>) {
        let Some((path, stays)) = file else {
            let text: String = text.trim_end().chars().take(LOGGED_MOST).collect();
            return text
                .lines()
                .for_each(|line| tracing::info!("script \"{}\": {line}", self.name));
        };
        let shown = path.clone();
        let write = move || {
            let mut options = OpenOptions::new();
            options.create(true).write(true).append(stays).truncate(!stays);
            options.open(&path)?.write_all(text.as_bytes())
        };
        // The file may be one that blocks.
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::error!("script \"{}\": {shown}: {error}", self.name);
        }
    }

    /// The value of a handler; an error is logged, and its value is empty.
    async fn read(&mut self, Call { handler, argument }: Call) -> String {
        let own = handler.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('.'));
        let name = own.unwrap_or(&handler);
        let value = if let Some(value) = compute(name, &argument) {
            value
        } else if let Some((_, value)) = self.machine.exported().find(|(known, _)| *known == name) {
            Ok(value.to_owned())
        } else {
            let ask = |handler| HandlerCall::Read { handler, argument: argument.clone() };
            let answer = self.ask_in_scope(&handler, ask).await;
            match answer.code {
                status::OK => Ok(answer.data.unwrap_or_default()),
                _ => Err(answer.messages.join(" ")),
            }
        };
        value.unwrap_or_else(|why| {
            tracing::error!("script \"{}\": {handler}: {why}", self.name);
            String::new()
        })
    }

    /// Writes a handler; an error is logged.
    async fn write(&mut self, Call { handler, argument }: Call) -> bool {
        let ask = |handler| HandlerCall::Write { handler, value: argument.clone() };
        let answer = self.ask_in_scope(&handler, ask).await;
        if answer.code != status::OK {
            tracing::error!("script \"{}\": {handler}: {}", self.name, answer.messages.join(" "));
        }
        answer.code == status::OK
    }

    /// Calls a handler of the nearest element of its name: in the script's compound element, or in one around it.
    async fn ask_in_scope(
        &mut self,
        handler: &str,
        call: impl Fn(String) -> HandlerCall,
    ) -> HandlerAnswer {
        let mut scope = self.name.clone();
        loop {
            scope.truncate(scope.rfind('/').unwrap_or(0));
            if scope.is_empty() || !handler.contains('.') {
                return self.ask(call(handler.to_owned())).await;
            }
            let answer = self.ask(call(format!("{scope}/{handler}"))).await;
            if answer.code != status::NO_ELEMENT {
                return answer;
            }
        }
    }

    /// Asks the owner, and records a change.
    async fn ask(&mut self, call: HandlerCall) -> HandlerAnswer {
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS) {
            sleep(PAUSE).await;
        }
        let request = Request::Handler(call);
        let change = audit::change(&request);
        let (to, answer) = oneshot::channel();
        let gone = || said(status::UNSPECIFIED, "the router is shutting down");
        if self.questions.send(Question::Request(request, to)).await.is_err() {
            return gone();
        }
        let answer = match answer.await {
            Ok(Answer::Ok(value)) => serde_json::from_value(value).unwrap_or_else(|_| gone()),
            Ok(Answer::Error(reason)) => said(status::UNSPECIFIED, reason),
            Err(_) => gone(),
        };
        let is_known = !matches!(answer.code, status::NO_ELEMENT | status::NO_HANDLER);
        if let Some(change) = change.filter(|_| is_known) {
            let result = match answer.code {
                status::OK => Answer::Ok(serde_json::Value::Null),
                _ => Answer::Error(answer.messages.join(" ")),
            };
            audit::Client::of_script(&self.name).record(&change, &result);
        }
        answer
    }
}
